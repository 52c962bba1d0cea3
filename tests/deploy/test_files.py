"""The deployment files agree with the services that they deploy."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from mnemesh_kit.config import ServerConfig

ROOT = Path(__file__).parents[2]
PROVIDERS = {"OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"}
OF_THE_IMAGE = {"MNEMESH_SERVICE"}
GIVEN = {"MNEMESH_POSTGRES_PASSWORD": "secret"}


def test_every_variable_is_a_setting_of_its_service(
    deployment: Any, service: str, config_class: type[ServerConfig]
) -> None:
    names = [field.name.upper() for field in fields(config_class)]
    known = (
        {f"MNEMESH_{name}" for name in names} | {f"MNEMESH_{service.upper()}_{name}" for name in names} | OF_THE_IMAGE
    )
    if service == "orchestrator":
        known |= PROVIDERS
    assert set(deployment.environment(service, GIVEN)) - known == set()


def test_the_settings_are_what_the_file_means(deployment: Any, service: str, config_class: type[ServerConfig]) -> None:
    config: Any = config_class.from_env(deployment.environment(service, GIVEN))
    assert config.database_url == f"postgresql://mnemesh:secret@postgres:5432/mnemesh_{service}"
    assert (config.host, config.data_dir, config.auth_key_file) == ("0.0.0.0", "/data", "/run/secrets/mnemesh_auth_key")
    # A variable that .env does not set has the same value as without containers.
    untouched = {"host", "port", "data_dir", "auth_key_file", "database_url"}
    untouched |= {field.name for field in fields(config_class) if field.name.endswith("_target")}
    if service == "orchestrator":
        assert config.secrets_key_file == "/run/secrets/mnemesh_secrets_key"
        untouched.add("secrets_key_file")
    for field in fields(config_class):
        if field.name not in untouched:
            assert getattr(config, field.name) == field.default, field.name


def test_ports_are_the_services_own_and_reach_this_machine_only(
    deployment: Any, service: str, config_class: type[ServerConfig]
) -> None:
    deployed = deployment.services[service]
    port = str(config_class().port)
    assert deployed["build"]["args"] == {"SERVICE": service, "PORT": port}
    assert deployed["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_the_orchestrator_looks_for_the_others_where_they_are(deployment: Any) -> None:
    environment = deployment.environment("orchestrator", GIVEN)
    for service in ("blocks", "recall", "archival", "tools"):
        port = deployment.services[service]["build"]["args"]["PORT"]
        assert environment[f"MNEMESH_{service.upper()}_TARGET"] == f"{service}:{port}"
        assert deployment.services["orchestrator"]["depends_on"][service] == {"condition": "service_healthy"}


def test_every_service_has_the_key_a_volume_and_a_database_that_is_made(deployment: Any, service: str) -> None:
    deployed = deployment.services[service]
    seals = ["mnemesh_secrets_key"] if service == "orchestrator" else []
    assert deployed["secrets"] == ["mnemesh_auth_key", *seals]
    assert deployed["volumes"] == [f"{service}:/data"]
    assert service in deployment.compose["volumes"]
    assert deployed["depends_on"]["postgres"] == {"condition": "service_healthy"}
    made = re.findall(r"CREATE DATABASE (\w+);", (ROOT / "deploy/postgres/databases.sql").read_text())
    assert f"mnemesh_{service}" in made


def test_only_the_sandbox_runs_as_root(deployment: Any, service: str) -> None:
    deployed = deployment.services[service]
    assert re.findall(r"^USER (.+)$", deployment.dockerfile, re.MULTILINE) == ["10001:10001"]
    if service == "tools":
        assert deployed["user"] == "root"
    else:
        assert "user" not in service
        assert deployed["cap_drop"] == ["ALL"]


def test_without_a_password_the_file_says_what_to_do(deployment: Any) -> None:
    password = deployment.services["postgres"]["environment"]["POSTGRES_PASSWORD"]
    assert password == "${MNEMESH_POSTGRES_PASSWORD:?run deploy/prepare.sh first}"


@pytest.mark.parametrize("path", ["deploy/Dockerfile", "Makefile"])
def test_images_are_built_with_the_uv_of_the_makefile(path: str) -> None:
    versions = re.findall(r"UV_VERSION\s*:?=\s*([\d.]+)", (ROOT / path).read_text())
    assert versions == re.findall(r"UV_VERSION\s*:?=\s*([\d.]+)", (ROOT / "Makefile").read_text())
