{{- define "headroom.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "headroom.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "headroom.labels" -}}
{{ include "headroom.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "headroom.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- end }}

{{- define "headroom.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "headroom.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "headroom.password" -}}
{{- if .Values.clickhouse.passwordSecret }}
- name: HEADROOM_CLICKHOUSE_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ .Values.clickhouse.passwordSecret }}, key: password}
{{- end }}
{{- end }}

{{- /* What the schema cannot say: values that need each other. */ -}}
{{/* The ids of the brokers that have a port each, as JSON. */}}
{{- define "headroom.brokerPorts" -}}
{{- ternary (list) .Values.kafka.brokerIds (ne .Values.listener.brokerNames "") | toJson }}
{{- end }}

{{- define "headroom.check" -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.clickhouse.url) }}
{{- fail "replicas: more than 1 needs clickhouse.url; without it each pod would have a ClickHouse of its own" }}
{{- end }}
{{- if and .Values.clickhouse.cluster (not .Values.clickhouse.url) }}
{{- fail "clickhouse.cluster: needs clickhouse.url, the URLs of its nodes with commas between them" }}
{{- end }}
{{- if and .Values.clickhouse.url (not .Values.clickhouse.passwordSecret) }}
{{- fail "clickhouse.passwordSecret: needed with clickhouse.url; a secret with the key password" }}
{{- end }}
{{- if and (has .Values.listener.securityProtocol (list "SSL" "SASL_SSL")) (not .Values.listener.tlsSecret) }}
{{- fail (printf "listener.tlsSecret: needed with securityProtocol %s" .Values.listener.securityProtocol) }}
{{- end }}
{{- if and .Values.jobs.quotaHeadroom.enabled (not .Values.clickhouse.url) }}
{{- fail "jobs.quotaHeadroom: needs clickhouse.url; the managed ClickHouse listens inside its pod only" }}
{{- end }}
{{- if and .Values.listener.brokerNames (not (has .Values.listener.securityProtocol (list "SSL" "SASL_SSL"))) }}
{{- fail "listener.brokerNames: TLS server names; needs listener.securityProtocol SSL or SASL_SSL" }}
{{- end }}
{{- range (include "headroom.brokerPorts" . | fromJsonArray) }}
{{- if gt (add (int $.Values.listener.port) 1 (int .)) 65535 }}
{{- fail (printf "kafka.brokerIds: broker %d has no port below 65536 with listener.port %d" (int .) (int $.Values.listener.port)) }}
{{- end }}
{{- if eq (int (add (int $.Values.listener.port) 1 (int .))) (int $.Values.http.port) }}
{{- fail (printf "http.port: %d is the port of broker %d" (int $.Values.http.port) (int .)) }}
{{- end }}
{{- end }}
{{- end }}
