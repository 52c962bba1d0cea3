"""The Helm chart, rendered by helm: it agrees with the services, and with what Kubernetes accepts."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.services import SERVICE_NAMES, STORE_NAMES
from mnemesh_kit.services import service as spec_of
from mnemesh_testkit.timeouts import scaled

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy/helm/mnemesh"
EXAMPLES: Final = sorted(path.stem for path in (ROOT / "deploy/helm/examples").glob("*.yaml"))
HELM_VERSION: Final = "v3.19.5"
KUBERNETES: Final = ("1.30", "1.34")
EXTERNAL: Final = ("Certificate", "PodMonitor")
"""Kinds of other projects, whose schemas are not among those of Kubernetes."""

pytestmark = pytest.mark.full

Manifests = list[dict[str, Any]]


@pytest.fixture(scope="module")
def helm() -> str:
    """The program: that of the machine, or one that Go builds and keeps in the cache of the user."""
    if found := shutil.which("helm"):
        return found
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mnemesh" / f"helm-{HELM_VERSION}"
    if not (cache / "helm").exists():
        go = shutil.which("go")
        if go is None:
            pytest.skip("helm is not installed, nor Go, which builds it")
        built = subprocess.run(
            [go, "install", f"helm.sh/helm/v3/cmd/helm@{HELM_VERSION}"],
            env={**os.environ, "GOBIN": str(cache), "GOFLAGS": ""},
            capture_output=True,
            text=True,
            timeout=scaled(900),
            check=False,
        )
        if built.returncode:
            pytest.skip(f"Go could not build helm: {built.stderr[-300:]}")
    return str(cache / "helm")


@pytest.fixture
def render(helm: str) -> Callable[..., Manifests]:
    """Returns the manifests of an example, with further values in the form of `--set`. Raises ValueError."""

    def manifests(example: str, *values: str, version: str = KUBERNETES[-1]) -> Manifests:
        file = ROOT / f"deploy/helm/examples/{example}.yaml"
        settings = [part for value in values for part in ("--set", value)]
        command = [helm, "template", "m", str(CHART), "--namespace", "agents", "--kube-version", version]
        answer = subprocess.run(
            [*command, "--values", str(file), *settings], capture_output=True, text=True, check=False
        )
        if answer.returncode:
            raise ValueError(answer.stderr)
        return [each for each in yaml.safe_load_all(answer.stdout) if each]

    return manifests


def workloads(manifests: Manifests) -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each
        for each in manifests
        if each["kind"] in ("Deployment", "StatefulSet")
    }


def kinds(manifests: Manifests, kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"].removeprefix("m-"): each for each in manifests if each["kind"] == kind}


def pod(workload: dict[str, Any]) -> dict[str, Any]:
    return dict(workload["spec"]["template"]["spec"])


def environment(workload: dict[str, Any]) -> dict[str, str]:
    (container,) = pod(workload)["containers"]
    return {each["name"]: str(each.get("value", "from a secret")) for each in container["env"]}


def config_of(service: str) -> Any:
    found: type[ServerConfig] = import_module(f"mnemesh_{service}.config").Config
    return found


def restricted_violations(spec: dict[str, Any]) -> Iterable[str]:
    """What the Pod Security standard `restricted` refuses in the pod."""
    (container,) = spec["containers"]
    given = container["securityContext"]
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    if not given.get("runAsNonRoot") or given.get("runAsUser") == 0:
        yield "runs as root"
    if given.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if given.get("capabilities", {}).get("drop") != ["ALL"] or given["capabilities"].get("add"):
        yield "capabilities"
    if given.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "seccompProfile"
    if {next(iter(set(volume) - {"name"})) for volume in spec["volumes"]} - {
        "emptyDir",
        "secret",
        "configMap",
        "projected",
    }:
        yield "volumes"


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("example", EXAMPLES)
def test_kubernetes_accepts_every_manifest(render: Callable[..., Manifests], example: str, version: str) -> None:
    manifests = render(example, version=version)
    assert set(workloads(manifests)) == set(SERVICE_NAMES)
    for each in manifests:
        if each["kind"] not in EXTERNAL:
            kubernetes_validate.validate(each, version, strict=True)


def test_the_chart_has_no_finding_of_helm(helm: str) -> None:
    for example in EXAMPLES:
        values = str(ROOT / f"deploy/helm/examples/{example}.yaml")
        command = [helm, "lint", "--strict", str(CHART), "--kube-version", KUBERNETES[-1], "--values", values]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stdout


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_service_reads_the_settings_of_its_pod(render: Callable[..., Manifests], example: str) -> None:
    for service, workload in workloads(render(example)).items():
        given = environment(workload)
        config = config_of(service).from_env({**given, "MNEMESH_HOST": "0.0.0.0", "MNEMESH_DATA_DIR": "/data"})
        names = [field.name.upper() for field in fields(config)]
        known = {f"MNEMESH_{name}" for name in names} | {f"MNEMESH_{service.upper()}_{name}" for name in names}
        known |= {"MNEMESH_TARGET"} if service == "gateway" else set()
        assert {name for name in given if name.startswith("MNEMESH_")} <= known
        assert config.auth_key_file == "/run/secrets/mnemesh/auth_key"
        targets = {
            field.name: getattr(config, field.name) for field in fields(config) if field.name.endswith("_target")
        }
        assert targets == {name: f"dns:///m-{(other := name[:-7])}:{spec_of(other).port}" for name in targets}
        if spec_of(service).has_database:
            assert config.database_url.partition("?")[0].endswith(f":5432/mnemesh_{service}")
            assert ("PGPASSWORD" in given, "password" in config.database_url) == (True, False)
        (container,) = pod(workload)["containers"]
        assert container["command"] == ["python", "-m", spec_of(service).package]
        assert container["ports"][0]["containerPort"] == spec_of(service).port


def test_only_callers_reach_a_service(render: Callable[..., Manifests]) -> None:
    policies = kinds(render("cluster"), "NetworkPolicy")
    callers: dict[str, set[str]] = {service: set() for service in SERVICE_NAMES}
    for caller in SERVICE_NAMES:
        for field in fields(config_of(caller)):
            if field.name.endswith("_target"):
                callers[field.name.removesuffix("_target")].add(caller)
    for service in SERVICE_NAMES:
        allowed: set[str] = set()
        outside = 0
        for rule in policies[service]["spec"]["ingress"]:
            if rule["ports"] == [{"port": spec_of(service).port}]:
                pods = [peer["podSelector"]["matchLabels"] for peer in rule["from"] if "podSelector" in peer]
                allowed |= {labels["app.kubernetes.io/component"] for labels in pods}
                outside += sum("namespaceSelector" in peer for peer in rule["from"])
        assert allowed == callers[service]
        assert outside == (1 if service in ("gateway", "orchestrator") else 0)


def test_everything_but_tools_meets_the_restricted_pod_security_standard(render: Callable[..., Manifests]) -> None:
    for service, workload in workloads(render("cluster")).items():
        found = list(restricted_violations(pod(workload)))
        assert bool(found) == (service == "tools"), (service, found)
    small = workloads(render("small"))
    assert list(restricted_violations(pod(small["tools"]))) == ["runs as root", "capabilities"]
    as_root = workloads(render("small", "services.files.sandbox=restricted"))["files"]
    assert "runs as root" in restricted_violations(pod(as_root))
    assert environment(as_root)["MNEMESH_FILES_MIN_SANDBOX"] == "restricted"


def test_secrets_are_references_and_each_service_gets_its_own(render: Callable[..., Manifests]) -> None:
    manifests = render("cluster")
    assert not kinds(manifests, "Secret")
    for service, workload in workloads(manifests).items():
        volumes = {each["name"]: each for each in pod(workload)["volumes"]}
        needed, optional = (source["secret"] for source in volumes["secrets"]["projected"]["sources"])
        keys = {item["key"] for item in needed["items"]}
        assert (optional["optional"], [item["path"] for item in optional["items"]]) == (True, ["auth_key.revoked"])
        assert keys == {"auth_key"} | ({"secrets_key"} if service in ("orchestrator", "tools") else set())
        assert volumes["tls"]["secret"]["secretName"] == f"m-{service}-tls"
        (container,) = pod(workload)["containers"]
        assert ("envFrom" in container) == (service == "orchestrator"), "keys of providers"
    certificates = kinds(manifests, "Certificate")
    assert set(certificates) == set(SERVICE_NAMES)
    assert all(f"m-{service}" in certificates[service]["spec"]["dnsNames"] for service in SERVICE_NAMES)


def test_state_is_on_a_volume_unless_a_server_keeps_it(render: Callable[..., Manifests]) -> None:
    def stateful(example: str) -> set[str]:
        return {service for service, each in workloads(render(example)).items() if each["kind"] == "StatefulSet"}

    assert stateful("small") == {"recall", "archival", "tools", "files"}
    assert stateful("cluster") == {"tools"}


def test_pods_scale_and_are_disrupted_one_at_a_time(render: Callable[..., Manifests]) -> None:
    manifests = render("cluster")
    scaled_services = {"gateway", "orchestrator", "recall", "archival"}
    assert set(kinds(manifests, "HorizontalPodAutoscaler")) == scaled_services
    for service, workload in workloads(manifests).items():
        assert ("replicas" in workload["spec"]) == (service not in scaled_services), "the autoscaler decides"
    assert set(kinds(manifests, "PodDisruptionBudget")) == set(SERVICE_NAMES)
    assert not set(kinds(render("small"), "PodDisruptionBudget")), "one pod could never be moved"


def test_backup_has_the_stores_of_every_service_and_nothing_else(render: Callable[..., Manifests]) -> None:
    assert not kinds(render("small"), "CronJob")
    manifests = render("cluster")
    job = kinds(manifests, "CronJob")["backup"]["spec"]
    spec = job["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    given = {each["name"]: each for each in container["env"]}
    of_services = [environment(each) for each in workloads(manifests).values()]
    for name in STORE_NAMES:
        url = f"MNEMESH_{name.upper()}_DATABASE_URL"
        assert given[url]["value"] in {each.get(url) for each in of_services}
    assert {name for name in given if not name.endswith("_DATABASE_URL")} == {
        "PGPASSWORD",
        *(name for each in of_services for name in each if name.startswith("MNEMESH_FILES_S3_")),
    }
    assert container["command"] == ["mnemesh", "backup", "s3://mnemesh-backups/agents", "--keep", "14"]
    assert (job["concurrencyPolicy"], list(restricted_violations(spec))) == ("Forbid", [])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (("database.host=",), "database.host is required"),
        (("database.hots=x",), "hots"),
        (("services.recall.replicas=2",), "services.recall can have more than one pod only with qdrant.url"),
        (
            ("services.files.autoscaling.maxReplicas=2",),
            "services.files can have more than one pod only with s3.bucket",
        ),
        (("services.blocks.replicas=16",), "could open 105 connections, and database.maxConnections is 100"),
        (("services.tools.sandbox=none",), "/services/tools/sandbox"),
        (("settings.log_level=debug",), "log_level"),
        (("backup.schedule=0 3 * * *", "backup.target=s3://kept"), "backup.schedule needs s3.bucket"),
        (("backup.schedule=0 3 * * *", "s3.bucket=files"), "backup.target is required"),
        (("backup.target=kept",), "/backup/target"),
        (("ingress.enabled=true",), "ingress.host is required"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(
    render: Callable[..., Manifests], values: tuple[str, ...], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        render("small", *values)
