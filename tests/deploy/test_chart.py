"""The chart: linted and rendered by helm itself; what deploy/ holds is what it renders."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.render import CHART, FILES, IMAGE, helm, template
from tests.deploy.renderings import RENDERINGS
from tests.e2e.accounts import rights

pytestmark = pytest.mark.cluster


def rendered(*values: str) -> list[dict[str, Any]]:
    arguments = [argument for value in values for argument in ("--set", value)]
    return [manifest for manifest in yaml.load_all(template(*arguments), yaml.CSafeLoader) if manifest]


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns pod specs by the name of their Deployment or Job."""
    return {
        manifest["metadata"]["name"]: manifest["spec"]["template"]["spec"]
        for manifest in objects
        if manifest["kind"] in ("Deployment", "Job")
    }


@pytest.mark.parametrize(
    ("repository", "message"),
    {
        "": "image.repository is not set: no registry serves the image, build or mirror it",
        "IMAGE": "at '/image/repository': 'IMAGE' does not match",
        "registry.example.org:5000/headroom:0.1.0": "at '/image/repository': ",
    }.items(),
)
def test_an_image_repository_that_is_no_reference_is_an_error(repository: str, message: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        helm("template", "headroom", str(CHART), "--set", f"image.repository={repository}")
    assert message in refused.value.stderr


def test_what_is_applied_by_hand_pulls_nothing_by_accident() -> None:
    applied = (CHART.parents[1] / "headroom.yaml").read_text("utf-8")
    images = {line.split("image: ")[1].strip('"') for line in applied.splitlines() if " image: " in line}
    assert images == {f"{IMAGE}:{yaml.safe_load((CHART / 'Chart.yaml').read_text())['appVersion']}"}
    assert IMAGE.partition("/")[0].endswith(".invalid")


def test_pods_are_placed_and_labelled_and_still_selected() -> None:
    objects = rendered(*RENDERINGS["placed"])
    for manifest in objects:
        if manifest["kind"] != "Deployment":
            continue
        match_labels = manifest["spec"]["selector"]["matchLabels"]
        labels = manifest["spec"]["template"]["metadata"]["labels"]
        assert labels["team"] == "platform"
        assert match_labels.items() <= labels.items()
        pod = manifest["spec"]["template"]["spec"]
        assert set(pod["affinity"]) == {"nodeAffinity"}
        (spread,) = pod["topologySpreadConstraints"]
        assert spread["labelSelector"] == {"matchLabels": match_labels}
    for name, pod in pods(objects).items():
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        (container,) = pod["containers"]
        assert {"name": "HTTPS_PROXY", "value": "http://proxy.example.org"} in container["env"]
        assert ("--verbose" in container["args"]) is (name != "headroom-test")


def test_the_policies_alone_need_kubernetes_1_30() -> None:
    template("--kube-version=1.30.0")
    template("--kube-version=1.28.0", "--set", "policy.enabled=false")
    for refused in (("--kube-version=1.29.9",), ("--kube-version=1.27.0", "--set", "policy.enabled=false")):
        with pytest.raises(subprocess.CalledProcessError) as failed:
            template(*refused)
        assert "policy.enabled=false" in failed.value.stderr or "kubeVersion" in failed.value.stderr


def test_lint_is_clean() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_is_current(file: Path) -> None:
    """`make manifests` writes deploy/ from the chart."""
    assert file.read_text("utf-8") == FILES[file]()


REFUSED = {
    "webhok.enabled=false": "at '': additional properties 'webhok' not allowed",
    "controller.replica=3": "at '/controller': additional properties 'replica' not allowed",
    "mode=replace": "at '/mode': value must be one of ",
    "controller.replicas=two": "at '/controller/replicas': got string, want integer",
    "webhook.url=http://plain": "at '/webhook/url': 'http://plain' does not match pattern",
    "webhook.certificate.source=none": "at '/webhook/certificate/source': value must be one of ",
    "rancher.quotas=ask": "at '/rancher/quotas': value must be one of ",
    "webhook.failurePolicies.pod=Fail": "at '/webhook/failurePolicies': additional properties 'pod' not allowed",
    "webhook.failurePolicies.pods=Maybe": "at '/webhook/failurePolicies/pods': value must be one of ",
    "image.digest=sha256:short": "at '/image/digest': 'sha256:short' does not match pattern",
    "releaseTimeout=-1": "at '/releaseTimeout': minimum: got -1, want 0",
    "imagePullSecrets={registry}": "at '/imagePullSecrets/0': got string, want object",
    "logLevel=warn": "at '/logLevel': value must be one of ",
    "extraEnv[0].value=1": "at '/extraEnv/0': missing property 'name'",
    "networkPolicy.apiServers={10.0.0.1}": "at '/networkPolicy/apiServers/0': '10.0.0.1' does not match pattern",
    "topologySpreadConstraints[0].maxSkew=1": "at '/topologySpreadConstraints/0': missing properties 'topologyKey'",
}


def test_unknown_values_and_those_of_a_wrong_type_are_refused() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered(*REFUSED)
    assert "values don't meet the specifications of the schema" in refused.value.stderr
    assert [value for value, error in REFUSED.items() if error not in refused.value.stderr] == []


@pytest.mark.parametrize("deadline", ["15", "20"])
def test_a_leader_that_would_outlive_its_lease_is_refused(deadline: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rendered(f"controller.leaderElection.renewDeadline={deadline}")
    assert "renewDeadline must be less than leaseDuration" in refused.value.stderr


def test_user_and_group_can_be_left_to_the_platform() -> None:
    for values, user in (((), 65532), (("user=null",), None), (("user=1000",), 1000)):
        templates = pods(rendered(*values))
        assert templates
        for pod in templates.values():
            context = pod["securityContext"]
            assert [context.get(name) for name in ("runAsUser", "runAsGroup", "fsGroup")] == [user] * 3
            assert context["runAsNonRoot"] is True


def test_a_catalog_finds_all_that_it_shows() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert all(chart[name] for name in ("home", "icon", "sources", "maintainers", "description", "keywords"))
    assert chart["annotations"]["catalog.cattle.io/namespace"] == "headroom-system"
    for manifest in rendered():
        labels = manifest["metadata"].get("labels", {})
        if labels.get("app.kubernetes.io/name") == "headroom":
            assert labels["app.kubernetes.io/part-of"] == "headroom"
            assert labels["app.kubernetes.io/instance"]


def test_a_failed_test_leaves_its_job_for_an_hour_alone() -> None:
    (job,) = [manifest for manifest in rendered() if manifest["metadata"]["name"] == "headroom-test"]
    assert job["spec"]["ttlSecondsAfterFinished"] == 3600


def test_each_webhook_may_have_a_failure_policy_of_its_own() -> None:
    arguments = pods(rendered("webhook.failurePolicies.pods=Fail"))["headroom-webhook"]["containers"][0]["args"]
    expected = ["--failure-policy=Ignore", "--failure-policy=pods=Fail"]
    assert [argument for argument in arguments if argument.startswith("--failure-policy")] == expected


@pytest.mark.parametrize("values", RENDERINGS.values(), ids=RENDERINGS)
def test_pods_are_hardened_and_objects_in_the_releases_namespace(values: tuple[str, ...]) -> None:
    objects = rendered(*values)
    elsewhere = [
        manifest
        for manifest in objects
        if manifest["metadata"].get("namespace", "headroom-system") != "headroom-system"
    ]
    assert {manifest["metadata"]["name"] for manifest in elsewhere} <= {"headroom-rancher-impersonation"}
    (controller,) = pods(objects)["headroom-controller"]["containers"]
    assert ("--remove-webhooks" in controller["args"]) is ("webhook.enabled=false" in values), "it serves none"
    for pod in pods(objects).values():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["priorityClassName"] == "system-cluster-critical"
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"]
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


def test_the_default_rendering_needs_no_custom_resources() -> None:
    kinds = [manifest["kind"] for manifest in rendered()]
    for kind, count in {
        "Deployment": 2,
        "ServiceAccount": 3,
        "PodDisruptionBudget": 2,
        "NetworkPolicy": 1,
        "ValidatingAdmissionPolicy": 5,
        "ValidatingAdmissionPolicyBinding": 5,
    }.items():
        assert kinds.count(kind) == count, kind
    assert not {"Certificate", "Issuer", "ServiceMonitor"} & set(kinds)
    assert not [manifest for manifest in rendered() if "aggregationRule" in manifest]
    # Only controllers elect a leader: every webhook replica serves.
    deployments = {
        manifest["metadata"]["name"]: manifest["spec"] for manifest in rendered() if manifest["kind"] == "Deployment"
    }
    for name in ("controller", "webhook"):
        spec = deployments.pop(f"headroom-{name}")
        (container,) = spec["template"]["spec"]["containers"]
        assert (spec["replicas"], "--leader-elect" in container["args"]) == (2, name == "controller")
    assert not deployments


@pytest.mark.parametrize("cidrs", [[], ["10.0.0.1/32", "10.0.0.2/32"]], ids=["everyone", "API servers"])
def test_who_reaches_the_webhook_is_a_value(cidrs: list[str]) -> None:
    value = f"networkPolicy.apiServers={{{','.join(cidrs)}}}"
    (policy,) = (manifest for manifest in rendered(*[value] if cidrs else []) if manifest["kind"] == "NetworkPolicy")
    metrics, webhook = policy["spec"]["ingress"]
    assert metrics == {"ports": [{"port": 8080, "protocol": "TCP"}]}
    assert webhook["ports"] == [{"port": 9443, "protocol": "TCP"}]
    assert [peer["ipBlock"]["cidr"] for peer in webhook.get("from", [])] == cidrs


@pytest.mark.parametrize(
    "value",
    [
        "mode=assist",
        "estimate=harvester",
        "kubevirtUsers={system:serviceaccount:kv:kubevirt-controller}",
        "rancherUsers={u}",
        "rancher.quotas=annotation",
    ],
)
def test_what_both_processes_decide_by_is_set_once(value: str) -> None:
    option_value = value.partition("=")[2].strip("{}")
    for name, pod in pods(rendered(value)).items():
        if name not in ("headroom-release", "headroom-test"):
            assert [argument for argument in pod["containers"][0]["args"] if argument.endswith(f"={option_value}")], (
                name
            )


def test_the_policies_name_the_chosen_accounts() -> None:
    account = "system:serviceaccount:elsewhere:kubevirt-controller"
    policies = [
        policy for policy in rendered(f"kubevirtUsers={{{account}}}") if policy["kind"] == "ValidatingAdmissionPolicy"
    ]
    about_pods = [policy for policy in policies if policy["metadata"]["name"].startswith("headroom-vm-pods")]
    assert len(about_pods) == 2
    assert all(account in yaml.safe_dump(policy, width=10_000) for policy in about_pods)


def test_a_release_removes_the_secret_by_its_chosen_name() -> None:
    objects = rendered("webhook.certificate.secretName=mine")
    assert "--secret-name=mine" in pods(objects)["headroom-release"]["containers"][0]["args"]
    roles = [manifest for manifest in objects if manifest["kind"] == "Role"]
    (rules,) = (role["rules"] for role in roles if role["metadata"]["name"] == "headroom-release")
    secrets = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"], "verbs": ["get", "delete"]}
    assert secrets in rules


@pytest.mark.parametrize("value", ["policy.enabled=false", "policy.migrationBudgets=false"])
def test_who_creates_migration_budgets_can_be_left_to_rbac(value: str) -> None:
    policies = [manifest["metadata"]["name"] for manifest in rendered(value) if "AdmissionPolicy" in manifest["kind"]]
    assert "headroom-migration-budgets" not in policies
    assert bool(policies) is (value != "policy.enabled=false")


def test_a_pod_is_ready_before_the_webhooks_are_registered() -> None:
    """Webhooks are registered after the API server has reached one through their Service, which has only ready pods."""
    objects = rendered()
    (service,) = [manifest["spec"] for manifest in objects if manifest["metadata"]["name"] == "headroom-webhook"
                  and manifest["kind"] == "Service"]  # fmt: skip
    assert not service.get("publishNotReadyAddresses")
    for name in ("headroom-controller", "headroom-webhook"):
        (container,) = pods(objects)[name]["containers"]
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz?exclude=webhook+registration"


def test_one_process_and_one_account_serve_the_webhooks_too() -> None:
    objects = rendered("webhook.inController=true")
    accounts = [manifest["metadata"]["name"] for manifest in objects if manifest["kind"] == "ServiceAccount"]
    assert accounts == ["headroom", "headroom-release"]
    assert "--webhook" in pods(objects)["headroom-controller"]["containers"][0]["args"]


@pytest.mark.parametrize("file", [path for path in FILES if path.suffix == ".yaml"], ids=lambda file: file.name)
def test_nothing_is_allowed_wholesale(file: Path) -> None:
    for body in yaml.load_all(file.read_text("utf-8"), yaml.CSafeLoader):
        for rule in body.get("rules", ()):
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]


def test_only_two_files_applied_by_hand_hold_the_namespace() -> None:
    """`kubectl delete -f` of any other file leaves the namespace."""
    kinds = {
        file.name: {manifest["kind"] for manifest in yaml.load_all(file.read_text("utf-8"), yaml.CSafeLoader)}
        for file in (*FILES, CHART.parents[1] / "harvester-addon.yaml")
        if file.suffix == ".yaml" and file.name != "rules.yaml"  # of Prometheus itself
    }
    assert {name for name, kinds_in_file in kinds.items() if "Namespace" in kinds_in_file} == {
        "namespace.yaml",
        "headroom.yaml",
        "harvester-addon.yaml",
    }
    assert kinds["namespace.yaml"] == {"Namespace"}


def test_the_addon_comes_with_its_namespace_as_harvesters_own_do(tmp_path: Path) -> None:
    text = (CHART.parents[1] / "harvester-addon.yaml").read_text("utf-8")
    namespace, addon = yaml.safe_load_all(text)
    assert namespace["kind"] == "Namespace"
    assert addon["metadata"]["namespace"] == namespace["metadata"]["name"]
    assert set(addon["spec"]) == {"enabled", "repo", "chart", "version", "valuesContent"}
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert (addon["spec"]["chart"], addon["spec"]["version"]) == (chart["name"], chart["version"])
    values = tmp_path / "values.yaml"
    values.write_text(addon["spec"]["valuesContent"])
    assert "registry.example.org/headroom:" in helm("template", "headroom", str(CHART), "--values", str(values))


WITHOUT_LOCKS = "controller.neverLock={*}"
RELEASE = "headroom-release"
CONFIGURATION_RIGHTS = {
    "the controller creates locks, by names of their own": (
        (),
        {"headroom", "headroom-webhook"},
        {"headroom", RELEASE},
    ),
    "without locks only the webhook creates configurations": ((WITHOUT_LOCKS,), {"headroom-webhook"}, {RELEASE}),
    "a controller with the webhooks creates both": (
        (WITHOUT_LOCKS, "webhook.inController=true"),
        {"headroom"},
        {RELEASE},
    ),
}


@pytest.mark.parametrize(("values", "creators", "writers"), CONFIGURATION_RIGHTS.values(), ids=CONFIGURATION_RIGHTS)
def test_who_creates_and_who_changes_webhook_configurations(
    values: tuple[str, ...], creators: set[str], writers: set[str]
) -> None:
    """RBAC cannot narrow create by name; `writers` may patch and delete those of any name."""
    configuration_rights = [
        right
        for right in rights(rendered(*values))
        if right.resource in ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
    ]
    assert {right.account for right in configuration_rights if right.verb == "create"} == creators
    unnamed = {right.account for right in configuration_rights if right.verb in ("patch", "delete") and not right.name}
    assert unnamed == writers


def test_who_may_create_quotas_or_impersonate_is_a_value() -> None:
    def holders(verb: str, resource: str, *values: str) -> set[str]:
        return {
            right.account for right in rights(rendered(*values)) if (right.verb, right.resource) == (verb, resource)
        }

    assert not holders("create", "resourcequotas")
    assert holders("create", "resourcequotas", "controller.renderDefaultQuota=true") == {"headroom"}
    for resource in ("serviceaccounts", "groups"):
        assert not holders("impersonate", resource)
        impersonators = holders("impersonate", resource, "rancher.quotas=impersonate")
        assert impersonators == {"headroom", "headroom-release"}
