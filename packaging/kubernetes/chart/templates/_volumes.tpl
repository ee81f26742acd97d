{{/* Settings of stores that cannot work, or that would leave volumes open to everybody. */}}
{{- define "memlane.checkStores" -}}
{{- $volumes := .Values.volumes }}
{{- if not $volumes.stores }}
{{- fail "volumes.stores is empty: at least one storage node is needed" }}
{{- end }}
{{- $names := dict }}
{{- range $volumes.stores }}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" (.name | default "" | toString)) }}
{{- fail "volumes.stores: each store needs a name of small letters, digits and '-'; it is a part of each volume's identifier, and must stay" }}
{{- end }}
{{- if hasKey $names .name }}
{{- fail (printf "volumes.stores: two of them are called %s" .name) }}
{{- end }}
{{- $_ := set $names .name true }}
{{- if not .address }}
{{- fail (printf "volumes.stores: the address of %s is missing: that of the storage node, as nodes reach it" .name) }}
{{- end }}
{{- if not (or .tlsSecret $volumes.insecure) }}
{{- fail (printf "volumes.stores: the tlsSecret of %s is missing; or volumes.insecure=true, on a network where everybody may use every volume" .name) }}
{{- end }}
{{- if and (gt (len $volumes.stores) 1) (not (and .tlsSecret $volumes.controllerTlsSecret)) }}
{{- fail "several volumes.stores need a tlsSecret each, and volumes.controllerTlsSecret: a store makes and deletes volumes only for who shows a certificate" }}
{{- end }}
{{- end }}
{{- end }}

{{/* An address, as it stands before a port. */}}
{{- define "memlane.host" -}}
{{- if and (contains ":" .) (not (hasPrefix "[" .)) }}[{{ . }}]{{ else }}{{ . }}{{ end }}
{{- end }}

{{/* Where a store's server listens, as nodes reach it. */}}
{{- define "memlane.serverOf" -}}
{{ include "memlane.host" .address }}:1234
{{- end }}

{{/* The labels by which stores say where they are, as JSON. */}}
{{- define "memlane.places" -}}
{{- $labels := dict }}
{{- range .Values.volumes.stores }}
{{- range $label, $_ := .topology }}
{{- $_ := set $labels $label true }}
{{- end }}
{{- end }}
{{- keys $labels | sortAlpha | toJson }}
{{- end }}

{{/* Root, as the volumes' files and the plugin's socket are root's; without any of its powers. */}}
{{- define "memlane.rootOfNothing" -}}
runAsUser: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Kubernetes's own controllers of volumes, which call the controller beside them. */}}
{{- define "memlane.sidecars" -}}
{{- $volumes := .Values.volumes }}
{{- $sidecars := dict "provisioner" $volumes.provisionerImage "attacher" $volumes.attacherImage "resizer" $volumes.resizerImage }}
{{- if $volumes.snapshots }}
{{- $_ := set $sidecars "snapshotter" $volumes.snapshotterImage }}
{{- end }}
{{- range $name, $image := $sidecars }}
- name: {{ $name }}
  image: {{ $image }}
  args:
    - --csi-address=/csi/csi.sock
    {{- if eq $name "provisioner" }}
    - --default-fstype=ext4
    {{- if include "memlane.places" $ | fromJsonArray }}
    # A volume is made where its pod will be, and nowhere else.
    - --strict-topology
    {{- end }}
    {{- end }}
  securityContext:
    {{- include "memlane.rootOfNothing" $ | nindent 4 }}
  volumeMounts:
    - {name: csi, mountPath: /csi}
{{- end }}
{{- end }}
