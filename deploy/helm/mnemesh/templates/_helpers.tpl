{{/* The facts about each service: its port, its database, what it calls, and whether it has state on a volume. */}}
{{- define "mnemesh.facts" -}}
gateway: {port: 8283, calls: [orchestrator, blocks, recall, archival]}
orchestrator: {port: 50050, database: true, secretsKey: true, calls: [blocks, recall, archival, tools, files]}
blocks: {port: 50051, database: true, calls: []}
recall: {port: 50052, database: true, qdrant: true, calls: []}
archival: {port: 50053, database: true, qdrant: true, calls: []}
tools: {port: 50054, database: true, secretsKey: true, calls: []}
files: {port: 50055, database: true, calls: [archival, orchestrator]}
{{- end }}

{{/* "true" if the pods of the service keep state on a volume. */}}
{{- define "mnemesh.stateful" -}}
{{- if or (eq .name "tools") (and (eq .name "files") (not .root.Values.s3.bucket)) (and .facts.qdrant (not .root.Values.qdrant.url)) }}true{{ end }}
{{- end }}

{{/* The largest number of pods of the service. */}}
{{- define "mnemesh.most" -}}
{{- max (int .values.replicas) (int .values.autoscaling.maxReplicas) }}
{{- end }}

{{/* "true" if the pods run as root: the sandbox gives each of its processes a uid. */}}
{{- define "mnemesh.root" -}}
{{- if or (eq .name "tools") (and (eq .name "files") (eq .values.sandbox "restricted")) }}true{{ end }}
{{- end }}

{{- define "mnemesh.selector" -}}
app.kubernetes.io/name: mnemesh
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{- define "mnemesh.labels" -}}
{{ include "mnemesh.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* Refuses values that cannot work together. */}}
{{- define "mnemesh.check" -}}
{{- if not .Values.database.host }}{{ fail "database.host is required: the chart does not install PostgreSQL." }}{{ end }}
{{- $connections := 0 }}
{{- range $name, $facts := include "mnemesh.facts" . | fromYaml }}
{{- $context := dict "root" $ "name" $name "facts" $facts "values" (index $.Values.services $name) }}
{{- $most := include "mnemesh.most" $context | int }}
{{- if and (gt $most 1) $facts.qdrant (not $.Values.qdrant.url) }}
{{- fail (printf "services.%s can have more than one pod only with qdrant.url: an embedded index belongs to one process." $name) }}
{{- end }}
{{- if and (gt $most 1) (eq $name "files") (not $.Values.s3.bucket) }}
{{- fail "services.files can have more than one pod only with s3.bucket: its volume belongs to one pod." }}
{{- end }}
{{- if $facts.database }}{{ $connections = add $connections (mul $most (int $.Values.database.poolSize)) }}{{ end }}
{{- end }}
{{- if .Values.backup.schedule }}
{{- $connections = add $connections 12 }}
{{- if not .Values.backup.target }}{{ fail "backup.target is required with backup.schedule." }}{{ end }}
{{- if not .Values.s3.bucket }}{{ fail "backup.schedule needs s3.bucket: another pod cannot read the contents of files on a volume." }}{{ end }}
{{- end }}
{{- if gt (int $connections) (int .Values.database.maxConnections) }}
{{- fail (printf "The pods could open %d connections, and database.maxConnections is %d. Lower database.poolSize or the numbers of pods, or raise max_connections of PostgreSQL." (int $connections) (int .Values.database.maxConnections)) }}
{{- end }}
{{- end }}

{{/* The environment of a service. */}}
{{- define "mnemesh.environment" -}}
{{- $values := .root.Values }}
{{- $settings := dict "MNEMESH_AUTH_KEY_FILE" "/run/secrets/mnemesh/auth_key" }}
{{- range .facts.calls }}
{{- $_ := set $settings (printf "MNEMESH_%s_TARGET" (upper .)) (printf "dns:///%s-%s:%v" $.root.Release.Name . (index $.all . "port")) }}
{{- end }}
{{- /* For the command line in the pod of the gateway. */}}
{{- if eq .name "gateway" }}{{ $_ := set $settings "MNEMESH_TARGET" (printf "dns:///%s-orchestrator:%v" .root.Release.Name (index .all "orchestrator" "port")) }}{{ end }}
{{- if .facts.secretsKey }}{{ $_ := set $settings "MNEMESH_SECRETS_KEY_FILE" "/run/secrets/mnemesh/secrets_key" }}{{ end }}
{{- if .facts.database }}
{{- with $values.database }}
{{- $_ := set $settings (printf "MNEMESH_%s_DATABASE_URL" (upper $.name)) (printf "postgresql://%s@%s:%v/mnemesh_%s%s" .user .host .port $.name (ternary (printf "?%s" .parameters) "" (not (empty .parameters)))) }}
{{- $_ := set $settings (printf "MNEMESH_%s_DATABASE_POOL_SIZE" (upper $.name)) (.poolSize | toString) }}
{{- end }}
{{- end }}
{{- if and .facts.qdrant $values.qdrant.url }}{{ $_ := set $settings "MNEMESH_QDRANT_URL" $values.qdrant.url }}{{ end }}
{{- if and (eq .name "files") $values.s3.bucket }}
{{- $_ := set $settings "MNEMESH_FILES_S3_BUCKET" $values.s3.bucket }}
{{- with $values.s3.endpointUrl }}{{ $_ := set $settings "MNEMESH_FILES_S3_ENDPOINT_URL" . }}{{ end }}
{{- with $values.s3.region }}{{ $_ := set $settings "MNEMESH_FILES_S3_REGION" . }}{{ end }}
{{- end }}
{{- if .values.sandbox }}{{ $_ := set $settings (printf "MNEMESH_%s_MIN_SANDBOX" (upper .name)) .values.sandbox }}{{ end }}
{{- if $values.tls.enabled }}
{{- $_ := set $settings "MNEMESH_GRPC_TLS_CERT_FILE" "/run/tls/tls.crt" }}
{{- $_ := set $settings "MNEMESH_GRPC_TLS_KEY_FILE" "/run/tls/tls.key" }}
{{- $_ := set $settings "MNEMESH_GRPC_TLS_CA_FILE" "/run/tls/ca.crt" }}
{{- $_ := set $settings "MNEMESH_GRPC_TLS_CLIENT_CA_FILE" "/run/tls/ca.crt" }}
{{- end }}
{{- range $name, $value := mergeOverwrite $settings (deepCopy $values.settings) (deepCopy .values.settings) }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- if .facts.database }}
- name: PGPASSWORD
  valueFrom: {secretKeyRef: {name: {{ $values.database.existingSecret }}, key: {{ $values.database.passwordKey }}}}
{{- end }}
{{- if and .facts.qdrant $values.qdrant.url $values.qdrant.existingSecret }}
- name: MNEMESH_QDRANT_API_KEY
  valueFrom: {secretKeyRef: {name: {{ $values.qdrant.existingSecret }}, key: api_key}}
{{- end }}
{{- if and (eq .name "files") $values.s3.bucket $values.s3.existingSecret }}
- name: MNEMESH_FILES_S3_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ $values.s3.existingSecret }}, key: access_key_id}}
- name: MNEMESH_FILES_S3_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ $values.s3.existingSecret }}, key: secret_access_key}}
{{- end }}
{{- end }}

{{/* What the container may do. Everything but tools, and files with the sandbox `restricted`, meets the Pod Security
standard `restricted`. */}}
{{- define "mnemesh.security" -}}
{{- if and (eq .name "tools") (eq .values.sandbox "full") -}}
runAsUser: 0
readOnlyRootFilesystem: true
capabilities: {add: [SYS_ADMIN, NET_ADMIN]}
seccompProfile: {type: Unconfined}
appArmorProfile: {type: Unconfined}
{{- else if include "mnemesh.root" . -}}
runAsUser: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
seccompProfile: {type: RuntimeDefault}
{{- else -}}
runAsUser: 10001
runAsGroup: 10001
runAsNonRoot: true
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- end }}
