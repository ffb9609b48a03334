{{- define "sglang.name" -}}
{{ printf "%s-sglang" .Release.Name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "sglang.selector" -}}
app.kubernetes.io/name: sglang
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sglang.labels" -}}
{{ include "sglang.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* Labels of the pods that answer HTTP: all, or the leaders of groups. */}}
{{- define "sglang.serving" -}}
{{ include "sglang.selector" . }}
app.kubernetes.io/component: server
{{- end }}

{{- define "sglang.annotations" -}}
{{- if .Values.metrics.scrapeAnnotations }}
prometheus.io/scrape: "true"
prometheus.io/path: /metrics
prometheus.io/port: {{ .Values.server.port | quote }}
{{- end }}
{{- with .Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The pod is killed at the end of its grace, whatever it does. */}}
{{- define "sglang.grace" -}}
{{- $least := add .Values.drain.delaySeconds .Values.drain.timeoutSeconds 15 | int }}
{{- if le (int .Values.terminationGracePeriodSeconds) $least }}
{{- fail (printf "terminationGracePeriodSeconds is %d; it must be more than %d, which is drain.delaySeconds + drain.timeoutSeconds + 15: raise it, or lower drain.timeoutSeconds" (int .Values.terminationGracePeriodSeconds) $least) }}
{{- end }}
{{- int .Values.terminationGracePeriodSeconds }}
{{- end }}

{{- define "sglang.image" -}}
{{ required "image.repository is empty; name an image with this project installed" .Values.image.repository }}:{{ required "image.tag is empty; name a tag" .Values.image.tag }}
{{- end }}

{{- define "sglang.args" -}}
- serve
- --host=0.0.0.0
- --port={{ .Values.server.port }}
- --drain-timeout={{ .Values.drain.timeoutSeconds }}
- --log-format=json
{{- with .Values.model.path }}
- --model-path={{ . }}
{{- end }}
{{- with .Values.model.servedName }}
- --served-model-name={{ . }}
{{- end }}
{{- if .Values.kvEvents.enabled }}
- {{ printf "--kv-events-config={\"publisher\": \"zmq\", \"endpoint\": \"tcp://*:%d\", \"replay_endpoint\": \"tcp://*:%d\", \"topic\": \"%s\"}" (int .Values.kvEvents.port) (int .Values.kvEvents.replayPort) .Values.kvEvents.topic | squote }}
{{- end }}
{{- range .Values.server.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "sglang.env" -}}
{{- with .Values.keysSecret }}
- name: SGLANG_API_KEY
  valueFrom: {secretKeyRef: {name: {{ . }}, key: api-key}}
- name: SGLANG_ADMIN_API_KEY
  valueFrom: {secretKeyRef: {name: {{ . }}, key: admin-api-key}}
{{- end }}
{{- with .Values.server.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* What every container has, serving or not. */}}
{{- define "sglang.container" -}}
image: {{ include "sglang.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [sglang]
resources: {{- toYaml .Values.resources | nindent 2 }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
{{- with .Values.volumeMounts }}
volumeMounts: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "sglang.env" . | trim }}
env: {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "sglang.serving.container" -}}
name: sglang
{{ include "sglang.container" . }}
ports:
  - {name: http, containerPort: {{ .Values.server.port }}}
  {{- if .Values.kvEvents.enabled }}
  - {name: kv-events, containerPort: {{ .Values.kvEvents.port }}}
  - {name: kv-replay, containerPort: {{ .Values.kvEvents.replayPort }}}
  {{- end }}
startupProbe:
  httpGet: {path: /startupz, port: http}
  {{- toYaml .Values.probes.startup | nindent 2 }}
livenessProbe:
  httpGet: {path: /livez, port: http}
  {{- toYaml .Values.probes.liveness | nindent 2 }}
readinessProbe:
  httpGet: {path: /readyz, port: http}
  {{- toYaml .Values.probes.readiness | nindent 2 }}
lifecycle:
  preStop:
    exec:
      command:
        - sh
        - -c
        - sleep {{ .Values.drain.delaySeconds }}; sglang drain http://127.0.0.1:{{ .Values.server.port }} --wait
{{- end }}

{{- /* What every pod has. */}}
{{- define "sglang.pod" -}}
terminationGracePeriodSeconds: {{ include "sglang.grace" . }}
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.volumes }}
volumes: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
