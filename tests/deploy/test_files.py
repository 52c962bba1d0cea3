"""The deployment files agree with the services that they deploy."""

import asyncio
import json
import os
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
from mnemesh_kit.config import ServerConfig, TlsSettings
from mnemesh_kit.server import Assembly, RunningServer
from mnemesh_kit.services import SERVICE_NAMES, STORE_NAMES, Protocol
from mnemesh_kit.services import service as spec_of
from mnemesh_kit.tls.certificates import read_certificate
from mnemesh_kit.tls.credentials import ClientTls

ROOT = Path(__file__).parents[2]
METRICS_PORT = 9464
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


@pytest.mark.parametrize(
    "name",
    ["docker-compose.yml", *(f"deploy/docker-compose.{each}.yml" for each in ("tls", "sandbox", "replicas"))],
)
def test_no_key_is_set_twice(name: str) -> None:
    # An engine refuses a file with a key that is set twice; the parser of these tests does not.
    assert not duplicate_keys(yaml.compose((ROOT / name).read_text()))
    assert duplicate_keys(yaml.compose("a: [{b: {c: 1, c: 2}}]")) == ["c, line 1"]


def test_every_variable_is_a_setting_of_its_service(
    deployment: Any, service: str, config_class: type[ServerConfig]
) -> None:
    names = [field.name.upper() for field in fields(config_class)]
    known = {f"MNEMESH_{name}" for name in names} | {f"MNEMESH_{service.upper()}_{name}" for name in names}
    assert set(deployment.environment(service, GIVEN)) - known == set()


def test_settings_come_from_files_and_keys_of_providers_reach_the_orchestrator_only(
    deployment: Any, service: str
) -> None:
    files = deployment.services[service]["env_file"]
    assert files[0] == {"path": ".env", "required": False}
    others = [{"path": "providers.env", "required": False}] if service == "orchestrator" else []
    assert files[1:] == others


def test_containers_have_the_documented_settings(
    deployment: Any, service: str, config_class: type[ServerConfig]
) -> None:
    config: Any = config_class.from_env(deployment.environment(service, GIVEN, {"MNEMESH_LOG_LEVEL": "debug"}))
    if spec_of(service).has_database:
        assert config.database_url == f"postgresql://mnemesh:secret@postgres:5432/mnemesh_{service}"
    assert (config.host, config.data_dir, config.auth_key_file) == ("0.0.0.0", "/data", "/run/secrets/mnemesh_auth_key")
    assert (config.metrics_port, config.log_level) == (METRICS_PORT, "debug")
    # What the file does not set has the same value as without containers.
    changed = {"host", "data_dir", "auth_key_file", "database_url", "metrics_port", "log_level"}
    changed |= {field.name for field in fields(config_class) if field.name.endswith("_target")}
    if service in ("orchestrator", "tools"):
        assert config.secrets_key_file == "/run/secrets/mnemesh_secrets_key"
        changed.add("secrets_key_file")
    for field in fields(config_class):
        if field.name not in changed:
            assert getattr(config, field.name) == field.default, field.name


def test_published_ports_are_bound_to_loopback_and_have_room_for_replicas(
    deployment: Any, service: str, config_class: type[ServerConfig]
) -> None:
    port = config_class().port
    published = deployment.services[service].get("ports", [])
    if service not in ("orchestrator", "gateway"):
        assert published == [], "the orchestrator forwards the calls of clients"
        return
    (mapping,) = published
    address, first_to_last, inner = mapping.split(":")
    first, last = map(int, first_to_last.split("-"))
    assert (address, first, int(inner)) == ("127.0.0.1", port, port)
    assert last > first


def test_the_replicas_fit_into_the_connections_of_the_database() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "docker-compose.replicas.yml").read_text())["services"]
    *_, setting = services.pop("postgres")["command"]
    replicas = {name: services.pop(name)["scale"] for name in SERVICE_NAMES if name in services}
    assert services == {}
    # An embedded vector index belongs to one process.
    assert set(replicas) == set(SERVICE_NAMES) - {"recall", "archival"}
    pools = sum(
        replicas.get(name, 1) * import_module(f"mnemesh_{name}.config").Config().database_pool_size
        for name in STORE_NAMES
    )
    assert pools < int(setting.removeprefix("max_connections="))


def test_all_services_have_one_image_and_run_their_own_package(deployment: Any, service: str) -> None:
    deployed = deployment.services[service]
    assert (deployed["image"], deployed["command"]) == ("mnemesh", ["python", "-m", spec_of(service).package])
    assert [name for name, each in deployment.services.items() if "build" in each] == ["blocks"]


def test_command_line_finds_the_mesh_and_can_write_its_directory(deployment: Any) -> None:
    cli = deployment.services["cli"]
    assert (cli["profiles"], cli["image"], cli["entrypoint"]) == (["cli"], "mnemesh", ["mnemesh"])
    assert f"install -d -m 1777 {cli['working_dir']}" in deployment.dockerfile
    addresses = dict(Addresses.resolve(env=cli["environment"]).items())
    assert addresses.pop("gateway") == "gateway:8283"
    assert set(addresses.values()) == {"orchestrator:50050"}
    assert cli["secrets"] == ["mnemesh_auth_key", "mnemesh_auth_key.revoked"]


@pytest.mark.parametrize("process", [*SERVICE_NAMES, "cli"])
def test_tls_file_gives_each_process_its_own_certificate(deployment: Any, process: str, tmp_path: Path) -> None:
    create_certificates(tmp_path, days=1, readable=True)
    added = deployment.tls["services"][process]
    (mount,) = added["volumes"]
    source, target, mode = mount.split(":")
    folder = tmp_path / Path(source).relative_to("deploy/secrets/tls")
    assert (folder.name, mode) == ("client" if process == "cli" else process, "ro")
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


async def test_health_check_asks_the_port_for_the_operator_without_an_interpreter(
    deployment: Any, unused_tcp_port: int
) -> None:
    check = deployment.dockerfile.split("HEALTHCHECK")[1]
    options = dict(re.findall(r"--([\w-]+)=(\d+)", check.split("CMD")[0]))
    # Other options are not known to every engine.
    assert set(options) == {"interval", "timeout", "start-period", "retries"}
    assert int(options["start-period"]) >= 120
    command = json.loads(check.split("CMD")[1].splitlines()[0])
    assert command[0] == "bash"

    async def exit_code() -> int:
        env = {**os.environ, "MNEMESH_METRICS_PORT": str(unused_tcp_port)}
        process = await asyncio.create_subprocess_exec(*command, env=env, stderr=asyncio.subprocess.DEVNULL)
        return await process.wait()

    codes = []

    async def look() -> None:
        codes.append(await exit_code())

    await look()
    server = RunningServer()
    await server.start(Assembly(name="any", start=[look]), ServerConfig(metrics_port=unused_tcp_port))
    await look()
    await server.stop()
    assert codes == [1, 1, 0], "closed, starting, ready"


def test_orchestrator_has_the_addresses_of_the_other_services_and_waits_for_none(deployment: Any) -> None:
    environment = deployment.environment("orchestrator", GIVEN)
    for service in ("blocks", "recall", "archival", "tools", "files"):
        assert environment[f"MNEMESH_{service.upper()}_TARGET"] == f"{service}:{spec_of(service).port}"
    for deployed in deployment.services.values():
        assert isinstance(deployed.get("depends_on", []), list), (
            "services repeat their calls; a chain only stops a start"
        )


def test_logs_of_containers_are_bounded(deployment: Any) -> None:
    for deployed in deployment.services.values():
        assert deployed["logging"]["options"].keys() == {"max-size", "max-file"}


def test_build_context_has_plain_patterns(deployment: Any) -> None:
    """Other builders than Docker's do not understand patterns of exceptions."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    exceptions = [line.removeprefix("!") for line in lines if line.startswith("!")]
    assert not [each for each in exceptions if "*" in each]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", deployment.dockerfile, re.MULTILINE)
    assert {name for line in copied for name in line.split()} == set(exceptions)


def test_every_service_has_the_key_a_volume_and_a_database(deployment: Any, service: str) -> None:
    deployed = deployment.services[service]
    seals = ["mnemesh_secrets_key"] if service in ("orchestrator", "tools") else []
    assert deployed["secrets"] == ["mnemesh_auth_key", "mnemesh_auth_key.revoked", *seals]
    # The others have nothing on their disk that a replica needs.
    kept = service in ("recall", "archival", "tools", "files")
    assert deployed.get("volumes") == ([f"{service}:/data"] if kept else None)
    assert (service in deployment.compose["volumes"]) == kept
    if not spec_of(service).has_database:
        return
    assert "postgres" in deployed["depends_on"]
    created = re.findall(r"CREATE DATABASE (\w+);", (ROOT / "deploy/postgres/databases.sql").read_text())
    assert f"mnemesh_{service}" in created


def test_only_the_sandbox_runs_as_root(deployment: Any, service: str) -> None:
    deployed = deployment.services[service]
    assert re.findall(r"^USER (.+)$", deployment.dockerfile, re.MULTILINE) == ["10001:10001"]
    if service in ("tools", "files"):
        assert deployed["user"] == "root"
    else:
        assert "user" not in deployed
        assert deployed["cap_drop"] == ["ALL"]


def test_missing_password_is_reported_with_instructions(deployment: Any) -> None:
    password = deployment.services["postgres"]["environment"]["POSTGRES_PASSWORD"]
    assert password == "${MNEMESH_POSTGRES_PASSWORD:?run deploy/prepare.sh first}"


@pytest.mark.parametrize("path", ["deploy/Dockerfile", "Makefile"])
def test_images_are_built_with_the_uv_of_the_makefile(path: str) -> None:
    versions = re.findall(r"UV_VERSION\s*:?=\s*([\d.]+)", (ROOT / path).read_text())
    assert versions == re.findall(r"UV_VERSION\s*:?=\s*([\d.]+)", (ROOT / "Makefile").read_text())


def test_the_sandbox_file_gives_tools_what_the_level_full_needs_and_others_nothing() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "docker-compose.sandbox.yml").read_text())["services"]
    assert list(services) == ["tools"]
    assert services["tools"] == {
        "cap_add": ["SYS_ADMIN", "NET_ADMIN"],
        "security_opt": ["seccomp:unconfined", "apparmor:unconfined"],
    }


def test_backup_has_the_stores_of_every_service(deployment: Any) -> None:
    given = deployment.environment("backup", GIVEN)
    deployed = deployment.services["backup"]
    for name in STORE_NAMES:
        config = import_module(f"mnemesh_{name}.config").Config
        of_service = config.from_env(deployment.environment(name, GIVEN))
        assert config.from_env(given).database == of_service.database
    assert deployed["volumes"][0] in deployment.services["files"]["volumes"]
    assert (deployed["user"], deployed["profiles"]) == (deployment.services["files"]["user"], ["backup"])
    assert given["MNEMESH_SECRETS_KEY_FILE"] == deployment.environment("tools", GIVEN)["MNEMESH_SECRETS_KEY_FILE"]
