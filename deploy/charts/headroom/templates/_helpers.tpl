{{/* Names are fixed: the Lease, the ConfigMap and the webhook configurations exist once a cluster. */}}
{{- define "headroom.labels" -}}
app.kubernetes.io/name: headroom
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: headroom
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "headroom.image" -}}
{{- $repository := required "image.repository is not set: no registry serves the image, build or mirror it and give its place, --set image.repository=registry.example.org/headroom (docs/install.md)" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "headroom.separate" -}}
{{- if and .Values.webhook.enabled (not .Values.webhook.inController) -}}true{{- end -}}
{{- end -}}

{{- define "headroom.files" -}}
{{- if and .Values.webhook.enabled (ne .Values.webhook.certificate.source "own") -}}true{{- end -}}
{{- end -}}

{{/* What both processes decide by. */}}
{{- define "headroom.policyArgs" -}}
- --mode={{ .Values.mode }}
{{- with .Values.estimate }}
- --estimate={{ . }}
{{- end }}
{{- with .Values.webhook.reserve }}
- --reserve={{ . }}
{{- end }}
{{- range .Values.kubevirtUsers }}
- --kubevirt-user={{ . }}
{{- end }}
{{- range .Values.rancherUsers }}
- --rancher-user={{ . }}
{{- end }}
{{- with include "headroom.rancherArgs" . }}
{{ . }}
{{- end }}
{{ include "headroom.logArgs" . }}
{{- end -}}

{{- define "headroom.rancherArgs" -}}
{{- if ne .Values.rancher.quotas "auto" -}}
- --rancher-quotas={{ .Values.rancher.quotas }}
{{- end -}}
{{- end -}}

{{/* The accounts of headroom, in an expression of an admission policy. */}}
{{- define "headroom.ownAccounts" -}}
{{- $prefix := printf "system:serviceaccount:%s:headroom" .Release.Namespace -}}
['{{ $prefix }}', '{{ $prefix }}-release', '{{ $prefix }}-webhook']
{{- end -}}

{{- define "headroom.logArgs" -}}
- --log-format={{ .Values.logFormat }}
{{- if eq .Values.logLevel "debug" }}
- --verbose
{{- end }}
{{- end -}}

{{- define "headroom.webhookArgs" -}}
- --bind-address=:9443
- --quota-guard={{ .Values.webhook.quotaGuard }}
- --failure-policy={{ .Values.webhook.failurePolicy }}
{{- range $webhook, $policy := .Values.webhook.failurePolicies }}
- --failure-policy={{ $webhook }}={{ $policy }}
{{- end }}
- --service-name=headroom-webhook
{{- with .Values.webhook.url }}
- --webhook-url={{ . }}
{{- end }}
{{- if include "headroom.files" . }}
- --tls-cert-file=/etc/headroom/tls/tls.crt
- --tls-key-file=/etc/headroom/tls/tls.key
{{- if eq .Values.webhook.certificate.source "certManager" }}
- --inject-ca-from={{ .Release.Namespace }}/headroom-webhook
{{- end }}
{{- else }}
- --secret-name={{ .Values.webhook.certificate.secretName }}
{{- end }}
{{- end -}}

{{- define "headroom.podSpec" -}}
automountServiceAccountToken: true
priorityClassName: {{ .root.Values.priorityClassName }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- with .root.Values.user }}
  runAsUser: {{ . }}
  runAsGroup: {{ . }}
  fsGroup: {{ . }}
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
nodeSelector: {{- toYaml .root.Values.nodeSelector | nindent 2 }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "headroom.container" -}}
image: {{ include "headroom.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
env:
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  - name: HEADROOM_NAMESPACE
    valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
  {{- with .root.Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* One Deployment. root, component, account, replicas, command, args, resources, webhook (serves it), health. */}}
{{- define "headroom.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: headroom-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "headroom.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  replicas: {{ .replicas }}
  selector:
    matchLabels:
      app.kubernetes.io/name: headroom
      app.kubernetes.io/component: {{ .component }}
  template:
    metadata:
      labels:
        {{- $own := merge (dict "app.kubernetes.io/component" .component) (include "headroom.labels" .root | fromYaml) }}
        {{- if .webhook }}
        {{- $_ := set $own "headroom.harvesterhci.io/webhook" "true" }}
        {{- end }}
        {{- toYaml (merge $own .root.Values.podLabels) | nindent 8 }}
      {{- with .root.Values.podAnnotations }}
      annotations: {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ .account }}
      {{- include "headroom.podSpec" . | nindent 6 }}
      terminationGracePeriodSeconds: 20
      {{- $replicas := dict "matchLabels" (dict "app.kubernetes.io/name" "headroom" "app.kubernetes.io/component" .component) }}
      affinity:
        {{- with .root.Values.affinity }}
        {{- toYaml . | nindent 8 }}
        {{- else }}
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector: {{- toYaml $replicas | nindent 18 }}
        {{- end }}
      {{- with .root.Values.topologySpreadConstraints }}
      topologySpreadConstraints:
        {{- range . }}
        - {{- toYaml (merge (deepCopy .) (dict "labelSelector" $replicas)) | nindent 10 }}
        {{- end }}
      {{- end }}
      containers:
        - name: headroom
          {{- include "headroom.container" . | nindent 10 }}
          args:
            - {{ .component }}
            {{- .args | nindent 12 }}
            - --health-bind-address=:8081
            - --metrics-bind-address=:8080
            {{- range .extraArgs }}
            - {{ . | quote }}
            {{- end }}
          ports:
            - {name: health, containerPort: 8081}
            - {name: metrics, containerPort: 8080}
            {{- if .webhook }}
            - {name: webhook, containerPort: 9443}
            {{- end }}
          startupProbe:
            httpGet: {path: /healthz, port: health}
            periodSeconds: 2
            failureThreshold: 30
          livenessProbe:
            httpGet: {path: /healthz, port: health}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            # Registered only once the API server has reached it, and that goes through the Service of ready pods.
            httpGet: {path: "/readyz?exclude=webhook+registration", port: health}
            periodSeconds: 5
            timeoutSeconds: 5
          resources: {{- toYaml .resources | nindent 12 }}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
            {{- if and .webhook (include "headroom.files" .root) }}
            - {name: tls, mountPath: /etc/headroom/tls, readOnly: true}
            {{- end }}
      volumes:
        - name: tmp
          emptyDir: {sizeLimit: 64Mi}
        {{- if and .webhook (include "headroom.files" .root) }}
        - name: tls
          secret: {secretName: {{ .root.Values.webhook.certificate.secretName }}}
        {{- end }}
{{- end -}}
