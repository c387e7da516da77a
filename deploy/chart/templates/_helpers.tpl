{{/* The name of everything in a release. */}}
{{- define "precede.name" -}}
{{ contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "precede.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Takes root and component. */}}
{{- define "precede.selector" -}}
app.kubernetes.io/name: precede
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "precede.labels" -}}
{{ include "precede.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* Takes root and own: the settings of one job or gateway over those of all, as precede.toml. Tables come last, as TOML wants. */}}
{{- define "precede.toml" -}}
{{- $settings := mergeOverwrite (dict "log_format" "json") (deepCopy .root.Values.settings) (omit .own "name") (dict "metrics" "0.0.0.0:9464") }}
{{- range $name, $value := $settings }}
{{- if not (kindIs "map" $value) }}
{{ $name }} = {{ $value | toJson }}
{{- end }}
{{- end }}
{{- range $name, $table := $settings }}
{{- if kindIs "map" $table }}

[{{ $name }}]
{{- range $key, $value := $table }}
{{ $key | quote }} = {{ $value | toJson }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "precede.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "precede.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* What every pod of precede mounts. Takes root and config, the name of its ConfigMap. */}}
{{- define "precede.volumes" -}}
- name: config
  configMap: {name: {{ .config }}}
- name: tmp
  emptyDir: {}
{{- with .root.Values.secrets.files }}
- name: secrets
  secret: {secretName: {{ . }}}
{{- end }}
{{- end }}

{{- define "precede.mounts" -}}
- {name: config, mountPath: /etc/precede, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if .Values.secrets.files }}
- {name: secrets, mountPath: /etc/precede-secrets, readOnly: true}
{{- end }}
{{- end }}

{{- define "precede.environment" -}}
{{- with .Values.secrets.environment }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end }}

{{/* Alive is a process that is not stuck; ready is one that does its work. Kafka's absence restarts nothing. */}}
{{- define "precede.probes" -}}
startupProbe:
  exec: {command: [/opt/entrypoint.sh, alive]}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 60
livenessProbe:
  exec: {command: [/opt/entrypoint.sh, alive]}
  periodSeconds: 30
  timeoutSeconds: 10
  failureThreshold: 4
readinessProbe:
  httpGet: {path: /ready, port: metrics}
  periodSeconds: 15
  timeoutSeconds: 5
{{- end }}

{{- define "precede.placement" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
