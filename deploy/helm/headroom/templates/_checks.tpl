{{- /* What the schema cannot say: values that need each other. */ -}}
{{- define "headroom.check" -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.clickhouse.url) }}
{{- fail "replicas: more than 1 needs clickhouse.url; without it each pod would have a ClickHouse of its own" }}
{{- end }}
{{- if and .Values.clickhouse.cluster (not .Values.clickhouse.url) }}
{{- fail "clickhouse.cluster: needs clickhouse.url, the URLs of its nodes with commas between them" }}
{{- end }}
{{- $login := or .Values.config.clickhouse_password_file (.Values.config.clickhouse_tls | default dict).certificate }}
{{- if and .Values.clickhouse.url (not .Values.clickhouse.passwordSecret) (not $login) }}
{{- fail "clickhouse.passwordSecret: needed with clickhouse.url; a secret with the password, unless config has clickhouse_password_file or clickhouse_tls.certificate" }}
{{- end }}
{{- if and .Values.clickhouse.passwordSecret .Values.config.clickhouse_password_file }}
{{- fail "clickhouse.passwordSecret: either this or config.clickhouse_password_file" }}
{{- end }}
{{- if and .Values.jobs.quotaHeadroom.enabled (not .Values.clickhouse.url) }}
{{- fail "jobs.quotaHeadroom: needs clickhouse.url; the managed ClickHouse listens inside its pod only" }}
{{- end }}
{{- if hasSuffix "headroom-gateway" .Values.image.repository }}
{{- if not .Values.clickhouse.url }}
{{- fail "image.repository: headroom-gateway has no ClickHouse in it; needs clickhouse.url" }}
{{- end }}
{{- if and .Values.jobs.quotaHeadroom.enabled (not .Values.jobs.quotaHeadroom.image.repository) }}
{{- fail "jobs.quotaHeadroom.image.repository: needed, because headroom-gateway has no Spark in it" }}
{{- end }}
{{- end }}
{{- $values := dict "listen" "listener.port" "http" "http.port" "listeners" "listeners" "upstream" "kafka.upstream" "cluster" "kafka.clusterName" "clickhouse" "clickhouse.url" "data" "spool" }}
{{- range $setting, $value := $values }}
{{- if hasKey $.Values.config $setting }}
{{- fail (printf "config.%s: set the value %s instead; ports of pods, services and policies, and volumes, follow from it" $setting $value) }}
{{- end }}
{{- end }}
{{- range (include "headroom.listeners" . | fromJsonArray) }}
{{- include "headroom.checkListener" (dict "listener" . "is" (ternary (printf "listeners, %s: " .name) "listener." (ne .name ""))) }}
{{- end }}
{{- include "headroom.checkPorts" . }}
{{- include "headroom.checkSpool" . }}
{{- end }}

{{- define "headroom.checkSpool" -}}
{{- $size := .Values.spool.size }}
{{- if kindIs "string" $size }}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 }}
{{- $size = mulf (regexFind "^[0-9.]+([eE][0-9]+)?" $size) (get $units (regexFind "[A-Za-z]*$" $size)) }}
{{- end }}
{{- if lt (float64 $size) (float64 .Values.spool.maxBytes) }}
{{- fail (printf "spool.maxBytes: %d bytes do not fit into spool.size, %v" (int64 .Values.spool.maxBytes) .Values.spool.size) }}
{{- end }}
{{- end }}

{{- define "headroom.checkListener" -}}
{{- $tls := has .listener.securityProtocol (list "SSL" "SASL_SSL") }}
{{- with .listener }}
{{- if and $tls (not .tlsSecret) }}
{{- fail (printf "%stlsSecret: needed with securityProtocol %s" $.is .securityProtocol) }}
{{- end }}
{{- if and .brokerNames (not $tls) }}
{{- fail (printf "%sbrokerNames: TLS server names; needs securityProtocol SSL or SASL_SSL" $.is) }}
{{- end }}
{{- if and (ne .serviceType "ClusterIP") (not .advertisedHost) }}
{{- fail (printf "%sadvertisedHost: needed with serviceType %s: clients outside the cluster do not resolve the service's name" $.is .serviceType) }}
{{- end }}
{{- if and (eq .serviceType "NodePort") (not .nodePort) (not .brokerNames) }}
{{- fail (printf "%snodePort: needed with serviceType NodePort: broker N is advertised at nodePort + 1 + N" $.is) }}
{{- end }}
{{- if and .nodePort (ne .serviceType "NodePort") }}
{{- fail (printf "%snodePort: only with serviceType NodePort" $.is) }}
{{- end }}
{{- range $field := list "loadBalancerClass" "loadBalancerSourceRanges" }}
{{- if and (get $.listener $field) (ne $.listener.serviceType "LoadBalancer") }}
{{- fail (printf "%s%s: only with serviceType LoadBalancer" $.is $field) }}
{{- end }}
{{- end }}
{{- if and .externalTrafficPolicy (eq .serviceType "ClusterIP") }}
{{- fail (printf "%sexternalTrafficPolicy: only with serviceType LoadBalancer or NodePort" $.is) }}
{{- end }}
{{- if and .advertisedPort .nodePort (ne (int .advertisedPort) (int .nodePort)) }}
{{- fail (printf "%sadvertisedPort: clients of a NodePort are sent to nodePort" $.is) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Two uses of one port, and brokers without one. */ -}}
{{- define "headroom.checkPorts" -}}
{{- $http := dict "name" "http" "port" .Values.http.port "nodePort" 0 }}
{{- $used := dict (toString (int .Values.http.port)) "http.port" }}
{{- $nodes := dict }}
{{- $names := dict "http" "http" "broker" "listener" "bootstrap" "listener" "pods" "a service" "telemetry" "a service" "grpc" "a receiver" "otlp-grpc" "a receiver" "otlp-http" "a receiver" }}
{{- range $listener := (include "headroom.listeners" . | fromJsonArray) }}
{{- if hasKey $names (.name | default "-") }}
{{- fail (printf "listeners: the name %s is taken" .name) }}
{{- end }}
{{- $_ := set $names (.name | default "-") "listeners" }}
{{- range (include "headroom.listenerPorts" (dict "root" $ "listener" .) | fromJsonArray) }}
{{- $port := toString (int .port) }}
{{- if gt (int .port) 65535 }}
{{- fail (printf "kafka.brokerIds: %s has no port below 65536 with port %d" .name (int $listener.port)) }}
{{- end }}
{{- if hasKey $used $port }}
{{- fail (printf "%s: %s is the port of %s, too" (get $used $port) $port .name) }}
{{- end }}
{{- $_ := set $used $port .name }}
{{- if gt (int .service) 65535 }}
{{- fail (printf "kafka.brokerIds: %s has no port below 65536 with advertisedPort %d" .name (int $listener.advertisedPort)) }}
{{- end }}
{{- if .nodePort }}
{{- $node := toString (int .nodePort) }}
{{- if or (hasKey $nodes $node) (gt (int .nodePort) 65535) }}
{{- fail (printf "nodePort: %s has no node port of its own, %s" .name $node) }}
{{- end }}
{{- $_ := set $nodes $node .name }}
{{- end }}
{{- end }}
{{- end }}
{{- range (include "headroom.telemetryPorts" . | fromJsonArray) }}
{{- $port := toString (int .port) }}
{{- if hasKey $used $port }}
{{- fail (printf "config: %s has the port %s of %s" .name $port (get $used $port)) }}
{{- end }}
{{- $_ := set $used $port .name }}
{{- end }}
{{- end }}
