"""Every setting of every service is documented, under its name and with its default; nothing else is."""

import re
from dataclasses import Field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from mnemesh_cli.supervisor.config import MeshConfig, service_environment
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.services import SERVICES, service

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
ROOMS = ("orchestrator", "blocks", "recall", "archival", "tools", "gateway")
ROW = re.compile(r"^\| `(MNEMESH_\w+)` \|(.*?)\|", re.MULTILINE)


def documented(section: str) -> dict[str, str]:
    """Variable → default, as a section of the page has them."""
    text = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    return {name: default.strip() for name, default in ROW.findall(text)}


def shown(field: Field[Any]) -> str:
    return "" if field.default in (None, "", ()) else str(field.default)


def own_fields(service: str) -> list[Field[Any]]:
    """Returns the settings that only this service has, or has with another default."""
    shared = {field.name: field.default for field in fields(ServerConfig)}
    config = import_module(f"mnemesh_{service}.config").Config
    return [
        field
        for field in fields(config)
        if shared.get(field.name, ...) != field.default and field.metadata.get("environment", True)
    ]


def test_settings_of_every_service_are_documented() -> None:
    expected = {f"MNEMESH_{field.name.upper()}": shown(field) for field in fields(ServerConfig) if field.name != "port"}
    assert documented("Every service") == expected


@pytest.mark.parametrize("service", ROOMS)
def test_settings_of_each_service_are_documented(service: str) -> None:
    table = documented(service)
    wanted = {}
    for field in own_fields(service):
        names = (f"MNEMESH_{service.upper()}_{field.name.upper()}", f"MNEMESH_{field.name.upper()}")
        name = next((name for name in names if name in table), names[0])
        wanted[name] = shown(field)
    assert table == wanted


@pytest.mark.parametrize("name", [spec.name for spec in SERVICES if spec.settings is not None])
def test_supervisor_passes_the_settings_of_each_service(name: str) -> None:
    """Every setting of the service, and no key of another one."""
    read = fields(import_module(f"mnemesh_{name}.config").Config)
    own = {field.name for field in read if field.metadata.get("environment", True)}
    foreign = ["OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "MNEMESH_OPENAI_API_KEY", "MNEMESH_SECRETS_KEY_FILE"]
    foreign += ["MNEMESH_ORCHESTRATOR_DATABASE_URL", "MNEMESH_TOKEN", "SOMETHING_ELSE"]
    wanted = [f"MNEMESH_{prefix}{field.upper()}" for field in own for prefix in ("", f"{name.upper()}_")]
    foreign = [key for key in foreign if key not in (*wanted, *service(name).variables)]
    given = dict.fromkeys([*foreign, *wanted, "PATH"], "x")
    passed = service_environment(name, MeshConfig(), given)
    assert {*wanted, "PATH"} <= passed.keys()
    assert not set(foreign) & passed.keys()
    assert service_environment("orchestrator", MeshConfig(), given).items() >= dict.fromkeys(foreign, "x").items()


def test_supervisor_passes_proxies_to_services_that_call_other_hosts() -> None:
    given = {"HTTPS_PROXY": "http://proxy.example", "MNEMESH_OIDC_ISSUER": "https://issuer.example"}
    for name, env, is_passed in (("blocks", {}, False), ("archival", {}, True), ("blocks", given, True)):
        passed = service_environment(name, MeshConfig(), {"HTTPS_PROXY": "http://proxy.example", **env})
        assert ("HTTPS_PROXY" in passed) == is_passed, name


def test_settings_of_the_supervisor_are_documented() -> None:
    settings = [field for field in fields(MeshConfig) if field.metadata.get("environment", True)]
    expected = {f"MNEMESH_{field.name.upper()}": shown(field) for field in settings}
    expected |= {spec.port_variable: str(spec.port) for spec in SERVICES}
    assert documented("mnemesh up") == expected


def test_provider_keys_are_also_read_from_vendor_variables() -> None:
    config = import_module("mnemesh_orchestrator.config").Config
    usual = sorted(set(re.findall(r"also `(\w+)`", PAGE.read_text())))
    assert len(usual) == 4
    for name in usual:
        assert getattr(config.from_env({name: "given"}), name.lower()) == "given"
