{{- /* A CronJob's name has at most 52 characters, and ends with -quota. */ -}}
{{- define "headroom.name" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{ .Values.fullnameOverride | default $name | trunc 46 | trimSuffix "-" }}
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
{{ include "headroom.imageName" (dict "image" .Values.image "root" .) }}
{{- end }}

{{- define "headroom.jobImage" -}}
{{- $image := mergeOverwrite (deepCopy .Values.image) .Values.jobs.quotaHeadroom.image -}}
{{- if .Values.jobs.quotaHeadroom.image.repository }}{{ $_ := set $image "digest" .Values.jobs.quotaHeadroom.image.digest }}{{ end -}}
{{ include "headroom.imageName" (dict "image" $image "root" .) }}
{{- end }}

{{- define "headroom.imageName" -}}
{{- $repository := .image.repository -}}
{{- with (.root.Values.global | default dict).imageRegistry }}{{ $repository = printf "%s/%s" . (regexReplaceAll "^[^/]*[.:][^/]*/" $repository "") }}{{ end -}}
{{- $tagged := printf "%s:%s" $repository (.image.tag | default .root.Chart.AppVersion) -}}
{{ ternary (printf "%s@%s" $tagged .image.digest) $tagged (ne (.image.digest | default "") "") | quote }}
{{- end }}

{{- /* The names of the secrets as JSON: of the chart's value, and of a parent's, which has names or {name: ...}. */ -}}
{{- define "headroom.pullSecrets" -}}
{{- $names := list -}}
{{- range concat .Values.imagePullSecrets ((.Values.global | default dict).imagePullSecrets | default list) -}}
{{- $names = append $names (ternary . (get (ternary (dict) . (kindIs "string" .)) "name") (kindIs "string" .)) -}}
{{- end -}}
{{ $names | uniq | toJson }}
{{- end }}

{{- define "headroom.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "headroom.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- /* OpenShift chooses the ids of a namespace itself, and refuses a pod that names others. */ -}}
{{- define "headroom.podSecurity" -}}
{{- $openshift := .Values.openshift -}}
{{- if eq (toString $openshift) "auto" }}{{ $openshift = .Capabilities.APIVersions.Has "security.openshift.io/v1" }}{{ end -}}
{{- $context := .Values.podSecurityContext | default dict -}}
{{- if $openshift }}{{ $context = omit $context "runAsUser" "runAsGroup" "fsGroup" }}{{ end -}}
{{ toYaml $context }}
{{- end }}

{{- define "headroom.password" -}}
{{- if .Values.clickhouse.passwordSecret }}
- name: HEADROOM_CLICKHOUSE_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ .Values.clickhouse.passwordSecret }}, key: {{ .Values.clickhouse.passwordSecretKey }}}
{{- end }}
{{- end }}

{{- /* Environment of the job: what reaches ClickHouse as the gateways do. */ -}}
{{- define "headroom.jobEnvironment" -}}
{{- include "headroom.password" . }}
{{- with .Values.config.clickhouse_password_file }}
- {name: HEADROOM_CLICKHOUSE_PASSWORD_FILE, value: {{ . | quote }}}
{{- end }}
{{- range $name, $file := .Values.config.clickhouse_tls }}
- {name: HEADROOM_CLICKHOUSE_TLS__{{ upper $name }}, value: {{ $file | quote }}}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "headroom.jobLabels" -}}
{{ merge (dict "app.kubernetes.io/component" "job") (.Values.jobs.quotaHeadroom.podLabels | default dict) .Values.podLabels | toYaml }}
{{- end }}

{{- define "headroom.jobAnnotations" -}}
{{ merge (dict) (.Values.jobs.quotaHeadroom.podAnnotations | default dict) .Values.podAnnotations | toYaml }}
{{- end }}

{{- /* The secret of the pages' token: a given one, or one that the chart makes; none when config has a token. */ -}}
{{- define "headroom.tokenSecret" -}}
{{- $web := .Values.config.web | default dict -}}
{{- if .Values.http.tokenSecret }}{{ .Values.http.tokenSecret -}}
{{- else if not (or $web.token $web.token_file) }}{{ include "headroom.name" . }}-pages{{ end -}}
{{- end }}

{{- /* The names at which pages answer, as JSON: of the services, of the pod itself, and those of config.web. Kubernetes fills
the pod's name in, so that another number of replicas changes no pod. */ -}}
{{- define "headroom.hostNames" -}}
{{- $name := include "headroom.name" . -}}
{{- $pods := printf "%s-pods" $name -}}
{{- $pod := "$(HEADROOM_GATEWAY__ID)" -}}
{{- $names := list -}}
{{- range $base := list $name $pods $pod (printf "%s.%s" $pod $pods) -}}
{{- range $suffix := list "" (printf ".%s" $.Release.Namespace) (printf ".%s.svc" $.Release.Namespace) (printf ".%s.svc.%s" $.Release.Namespace $.Values.clusterDomain) -}}
{{- $names = append $names (printf "%s%s" $base $suffix) -}}
{{- end -}}
{{- end -}}
{{ concat $names ((.Values.config.web | default dict).host_names | default list) | uniq | toJson }}
{{- end }}

{{- define "headroom.host" -}}
{{ .Values.listener.advertisedHost | default (printf "%s.%s.svc" (include "headroom.name" .) .Release.Namespace) }}
{{- end }}

{{- /* HOST:PORT, with brackets around an IPv6 literal. */ -}}
{{- define "headroom.address" -}}
{{ ternary (printf "[%s]" .host) .host (contains ":" .host) }}:{{ int .port }}
{{- end }}

{{- /* All listeners as JSON: the first one is `listener`, and has no name. */ -}}
{{- define "headroom.listeners" -}}
{{- $listeners := list (merge (dict "name" "") .Values.listener) -}}
{{- range .Values.listeners }}{{ $listeners = append $listeners (merge (deepCopy .) (dict "securityProtocol" "PLAINTEXT" "serviceType" "ClusterIP")) }}{{ end -}}
{{ $listeners | toJson }}
{{- end }}

{{- /* The ports of a listener as JSON: bootstrap, and one for each broker unless they have TLS server names. A load
balancer shows clients the service's ports, so these are the advertised ones. */ -}}
{{- define "headroom.listenerPorts" -}}
{{- $node := int (.listener.nodePort | default 0) -}}
{{- $port := int .listener.port -}}
{{- $service := ternary (int (.listener.advertisedPort | default $port)) $port (eq .listener.serviceType "LoadBalancer") -}}
{{- $ports := list (dict "name" (.listener.name | default "bootstrap") "port" $port "service" $service "nodePort" $node) -}}
{{- $listener := .listener -}}
{{- range ternary (list) .root.Values.kafka.brokerIds (ne (.listener.brokerNames | default "") "") -}}
{{- $after := add1 (int .) -}}
{{- $name := printf "%s-%d" ($listener.name | default "broker") (int .) -}}
{{- $ports = append $ports (dict "name" $name "port" (add $port $after) "service" (add $service $after) "nodePort" (ternary (add $node $after) 0 (gt $node 0))) -}}
{{- end -}}
{{ $ports | toJson }}
{{- end }}

{{- /* The ports of the telemetry receivers of `config` as JSON, without those that only the pod itself reaches. */ -}}
{{- define "headroom.telemetryPorts" -}}
{{- $otlp := .Values.config.otlp | default dict -}}
{{- $ports := list -}}
{{- range $name, $address := dict "otlp-grpc" $otlp.grpc "otlp-http" $otlp.http "grpc" (.Values.config.grpc | default dict).listen -}}
{{- if and $address (not (regexMatch "^(127\\.|localhost:|\\[::1\\]:)" (toString $address))) -}}
{{- $ports = append $ports (dict "name" $name "port" (regexFind "[0-9]+$" (toString $address) | int)) -}}
{{- end -}}
{{- end -}}
{{ $ports | toJson }}
{{- end }}

{{- define "headroom.ipFamilies" -}}
{{- with .Values.ipFamilyPolicy }}ipFamilyPolicy: {{ . }}{{ end }}
{{- with .Values.ipFamilies }}
ipFamilies: {{ toJson . }}
{{- end }}
{{- end }}
