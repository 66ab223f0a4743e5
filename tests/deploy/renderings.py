"""The chart's renderings for tests: values to set, by the rendering's name."""

RENDERINGS = {
    "default": (),
    "webhook off": ("webhook.enabled=false",),
    "assist": ("mode=assist",),
    "in the controller": ("webhook.inController=true",),
    "cert-manager": ("webhook.certificate.source=certManager",),
    "brought certificate": ("webhook.certificate.source=secret", "webhook.certificate.secretName=mine"),
    "placed": (
        "imagePullSecrets[0].name=registry",
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].key=node-role.kubernetes.io/control-plane",
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].operator=Exists",
        "topologySpreadConstraints[0].topologyKey=topology.kubernetes.io/zone",
        "topologySpreadConstraints[0].maxSkew=1",
        "topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
        "podLabels.team=platform",
        "podLabels.app\\.kubernetes\\.io/name=other",
        "extraEnv[0].name=HTTPS_PROXY",
        "extraEnv[0].value=http://proxy.example.org",
        "logLevel=debug",
        "networkPolicy.apiServers={10.0.0.1/32,fd00::1/128}",
    ),
    "monitoring": ("serviceMonitor.enabled=true", "prometheusRule.enabled=true"),
    "all rights": ("rancher.quotas=impersonate", "controller.renderDefaultQuota=true"),
}
