"""The deployment files agree with the services that they deploy."""

from __future__ import annotations

import re
import stat
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from mnemesh_cli.certificates import create_certificates
from mnemesh_client import Addresses
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.services import SERVICE_NAMES, Protocol
from mnemesh_kit.services import service as spec_of
from mnemesh_kit.tls.certificates import read_certificate
from mnemesh_kit.tls.client import ClientTls
from mnemesh_kit.tls.settings import TlsSettings
from mnemesh_orchestrator.llm.dialects import DIALECTS

ROOT = Path(__file__).parents[2]
PROVIDERS = (
    {name for dialect in DIALECTS.values() for name in (*dialect.key_variables, *dialect.url_variables)}
    | {f"MNEMESH_{type_.upper()}_{name}" for type_ in DIALECTS for name in ("API_KEY", "BASE_URL", "API")}
    | {"MNEMESH_AZURE_API_VERSION", "AZURE_OPENAI_API_VERSION"}
    | {"MNEMESH_BEDROCK_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"}
)
OF_THE_IMAGE = {"MNEMESH_SERVICE"}
OF_THE_KIT = {"OTEL_EXPORTER_OTLP_ENDPOINT"}
METRICS_PORT = 9464
# The file sets these, or they are of SQLite.
FIXED = {"host", "port", "data_dir", "metrics_port", "auth_key_file", "database_url", "sqlite_synchronous"}
GIVEN = {"MNEMESH_POSTGRES_PASSWORD": "secret"}


def duplicate_keys(node: yaml.Node) -> list[str]:
    """Returns the keys that a mapping in the document has twice, with their lines. A parser takes the last one."""
    found, known = [], set()
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if (text := str(key.value)) in known:
                found.append(f"{text}, line {key.start_mark.line + 1}")
            known.add(text)
            found += duplicate_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        found = [each for item in node.value for each in duplicate_keys(item)]
    return found


@pytest.mark.parametrize("name", ["docker-compose.yml", "deploy/docker-compose.tls.yml"])
def test_no_key_is_set_twice(name: str) -> None:
    # An engine refuses a file with a key that is set twice; the parser of these tests does not.
    assert not duplicate_keys(yaml.compose((ROOT / name).read_text()))
    assert duplicate_keys(yaml.compose("a: [{b: {c: 1, c: 2}}]")) == ["c, line 1"]


def test_every_variable_is_a_setting_of_its_service(
    deployment: Any, service: str, config_class: type[ServerConfig]
) -> None:
    names = [field.name.upper() for field in fields(config_class)]
    known = (
        {f"MNEMESH_{name}" for name in names}
        | {f"MNEMESH_{service.upper()}_{name}" for name in names}
        | OF_THE_IMAGE
        | OF_THE_KIT
        | set(spec_of(service).variables)
    )
    if service == "orchestrator":
        known |= PROVIDERS
    assert set(deployment.environment(service, GIVEN)) - known == set()


def test_every_setting_is_passed_to_its_container(
    deployment: Any, service: str, config_class: type[ServerConfig]
) -> None:
    """Under its name in docs/configuration.md."""
    documented = set(re.findall(r"^\| `(MNEMESH_\w+)` \|", (ROOT / "docs/configuration.md").read_text(), re.MULTILINE))
    passed = set(deployment.environment(service, GIVEN))
    for field in fields(config_class):
        if field.name in FIXED or field.name.endswith("_target") or not field.metadata.get("environment", True):
            continue
        names = {f"MNEMESH_{field.name.upper()}", f"MNEMESH_{service.upper()}_{field.name.upper()}"}
        assert names & documented & passed, field.name
    if service == "orchestrator":
        assert passed >= PROVIDERS
        arguments = {**GIVEN, "MNEMESH_GROQ_API_KEY": "k", "MNEMESH_STEP_TRACE_DAYS": "3"}
        config: Any = config_class.from_env(deployment.environment(service, arguments))
        assert ([each.type for each in config.more_providers], config.step_trace_days) == (["groq"], 3)
    else:
        assert not passed & PROVIDERS, "keys of providers are for the orchestrator only"


def test_containers_have_the_documented_settings(
    deployment: Any, service: str, config_class: type[ServerConfig]
) -> None:
    config: Any = config_class.from_env(deployment.environment(service, GIVEN))
    if spec_of(service).has_database:
        assert config.database_url == f"postgresql://mnemesh:secret@postgres:5432/mnemesh_{service}"
    assert (config.host, config.data_dir, config.auth_key_file) == ("0.0.0.0", "/data", "/run/secrets/mnemesh_auth_key")
    # A variable that .env does not set has the same value as without containers.
    untouched = {"host", "port", "data_dir", "auth_key_file", "database_url", "metrics_port"}
    assert config.metrics_port == METRICS_PORT
    untouched |= {field.name for field in fields(config_class) if field.name.endswith("_target")}
    if service in ("orchestrator", "tools"):
        assert config.secrets_key_file == "/run/secrets/mnemesh_secrets_key"
        untouched.add("secrets_key_file")
    for field in fields(config_class):
        if field.name not in untouched:
            assert getattr(config, field.name) == field.default, field.name


def test_ports_are_those_of_the_services_and_bound_to_loopback(
    deployment: Any, service: str, config_class: type[ServerConfig]
) -> None:
    deployed = deployment.services[service]
    port = str(config_class().port)
    assert deployed["build"]["args"] == {"SERVICE": service, "PORT": port}
    metrics = METRICS_PORT + spec_of(service).metrics_offset
    assert deployed["ports"] == [f"127.0.0.1:{port}:{port}", f"127.0.0.1:{metrics}:{METRICS_PORT}"]


def test_command_line_image_finds_the_mesh(deployment: Any) -> None:
    cli = deployment.services["cli"]
    assert (cli["profiles"], cli["build"]["target"]) == (["cli"], "cli")
    stage = deployment.dockerfile.split("FROM base AS cli\n")[1].split("\nFROM ")[0]
    assert stage.splitlines()[-1].strip() == 'ENTRYPOINT ["mnemesh"]'
    addresses = dict(Addresses.resolve(env=cli["environment"]).items())
    ports = {service: deployment.services[service]["build"]["args"]["PORT"] for service in SERVICE_NAMES}
    assert addresses == {service: f"{service}:{port}" for service, port in ports.items()}
    assert cli["secrets"] == ["mnemesh_auth_key"]


@pytest.mark.parametrize("process", [*SERVICE_NAMES, "cli"])
def test_tls_file_gives_each_process_its_own_certificate(deployment: Any, process: str, tmp_path: Path) -> None:
    create_certificates(tmp_path, days=1, readable=True)
    added = deployment.tls["services"][process]
    (mount,) = added["volumes"]
    source, target, mode = mount.split(":")
    folder = tmp_path / Path(source).relative_to("deploy/secrets/tls")
    assert (folder.name, mode) == ("client" if process == "cli" else process, "ro")
    assert added["environment"].keys() <= deployment.services[process]["environment"].keys()
    placed = {name: path.replace(target, str(folder)) for name, path in added["environment"].items()}
    settings = TlsSettings.from_env(placed, process)
    assert ClientTls(settings).encrypts(f"{process}:1")
    if process == "cli":
        assert settings.ca_file == str(folder / "ca.crt")
    elif spec_of(process).protocol is Protocol.GRPC:
        config = import_module(f"mnemesh_{process}.config").Config.from_env(placed)
        assert config.grpc_tls_client_ca_file == str(folder / "ca.crt")
        assert process in read_certificate(settings.cert_file or "", settings.key_file, "").names
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o644}
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600


def test_health_checks_are_frequent_at_start_only(deployment: Any) -> None:
    options = dict(re.findall(r"--([\w-]+)=(\d+)", deployment.dockerfile.split("HEALTHCHECK")[1].split("CMD")[0]))
    assert (int(options["interval"]) >= 30, int(options["start-interval"]) <= 5) == (True, True)


def test_orchestrator_has_the_addresses_of_the_other_services(deployment: Any) -> None:
    environment = deployment.environment("orchestrator", GIVEN)
    for service in ("blocks", "recall", "archival", "tools"):
        port = deployment.services[service]["build"]["args"]["PORT"]
        assert environment[f"MNEMESH_{service.upper()}_TARGET"] == f"{service}:{port}"
        assert deployment.services["orchestrator"]["depends_on"][service] == {"condition": "service_healthy"}


def test_every_service_has_the_key_a_volume_and_a_database(deployment: Any, service: str) -> None:
    deployed = deployment.services[service]
    seals = ["mnemesh_secrets_key"] if service in ("orchestrator", "tools") else []
    assert deployed["secrets"] == ["mnemesh_auth_key", *seals]
    assert deployed["volumes"] == [f"{service}:/data"]
    assert service in deployment.compose["volumes"]
    if not spec_of(service).has_database:
        return
    assert deployed["depends_on"]["postgres"] == {"condition": "service_healthy"}
    created = re.findall(r"CREATE DATABASE (\w+);", (ROOT / "deploy/postgres/databases.sql").read_text())
    assert f"mnemesh_{service}" in created


def test_only_the_sandbox_runs_as_root(deployment: Any, service: str) -> None:
    deployed = deployment.services[service]
    assert re.findall(r"^USER (.+)$", deployment.dockerfile, re.MULTILINE) == ["10001:10001"]
    if service in ("tools", "files"):
        assert deployed["user"] == "root"
    else:
        assert "user" not in service
        assert deployed["cap_drop"] == ["ALL"]


def test_missing_password_is_reported_with_instructions(deployment: Any) -> None:
    password = deployment.services["postgres"]["environment"]["POSTGRES_PASSWORD"]
    assert password == "${MNEMESH_POSTGRES_PASSWORD:?run deploy/prepare.sh first}"


@pytest.mark.parametrize("path", ["deploy/Dockerfile", "Makefile"])
def test_images_are_built_with_the_uv_of_the_makefile(path: str) -> None:
    versions = re.findall(r"UV_VERSION\s*:?=\s*([\d.]+)", (ROOT / path).read_text())
    assert versions == re.findall(r"UV_VERSION\s*:?=\s*([\d.]+)", (ROOT / "Makefile").read_text())
