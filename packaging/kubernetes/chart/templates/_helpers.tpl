{{- define "memlane.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "memlane.labels" -}}
app.kubernetes.io/part-of: memlane
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "memlane.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What a container needs that does nothing with the host: nothing. */}}
{{- define "memlane.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* The folder of the host in which this version's library lies. Each version has one of its own: pods that run keep theirs. */}}
{{- define "memlane.versioned" -}}
{{ .Values.node.stateDir }}/{{ .Chart.AppVersion }}
{{- end }}

{{- define "memlane.excluded" -}}
- key: kubernetes.io/metadata.name
  operator: NotIn
  values: {{ concat .Values.webhook.excludedNamespaces (list .Release.Namespace) | toJson }}
{{- end }}

{{/* What both webhooks have in common. */}}
{{- define "memlane.webhook" -}}
clientConfig:
  service:
    name: memlane-webhook
    namespace: {{ .Release.Namespace }}
    path: /mutate
    port: 443
rules:
  - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods], scope: Namespaced}
  # kubectl debug
  - {apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [pods/ephemeralcontainers], scope: Namespaced}
admissionReviewVersions: [v1]
# Without an answer, the pod is made as it is: a lane is never a reason not to run.
failurePolicy: Ignore
timeoutSeconds: {{ .Values.webhook.timeoutSeconds }}
sideEffects: None
matchPolicy: Equivalent
# Containers that another webhook adds later get a lane, too.
reinvocationPolicy: IfNeeded
{{- end }}
