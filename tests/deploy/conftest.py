"""The deployment files, read as an engine would read them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from mnemesh_kit.config import ServerConfig
from mnemesh_kit.services import SERVICE_NAMES

ROOT = Path(__file__).parents[2]
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def interpolated(text: str, given: Mapping[str, str]) -> str:
    """`text` with ${NAME}, ${NAME:-default} and ${NAME:?complaint} replaced."""

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if given.get(name):
            return given[name]
        if kind == "?":
            raise LookupError(f"{name}: {rest}")
        return rest or ""

    return VARIABLE.sub(value, text)


@dataclass(frozen=True)
class Deployment:
    """docker-compose.yml and what it refers to."""

    compose: dict[str, Any]
    dockerfile: str
    tls: dict[str, Any]
    """docker-compose.tls.yml, which is read after docker-compose.yml."""

    @property
    def services(self) -> dict[str, dict[str, Any]]:
        """By name."""
        return dict(self.compose["services"])

    def environment(
        self, service: str, given: Mapping[str, str], file: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Returns the environment of a process: the image's, that of `file` (.env), and the compose file's."""
        lines = self.dockerfile.replace("\\\n", " ").splitlines()
        image = dict(
            word.split("=", 1)
            for line in lines
            if line.startswith("ENV ")
            for word in line.split()
            if "MNEMESH_" in word
        )
        own = self.services[service]["environment"]
        return {**image, **(file or {}), **{name: interpolated(str(value), given) for name, value in own.items()}}


@pytest.fixture(scope="session")
def deployment() -> Deployment:
    """The files of this repository."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    tls = yaml.safe_load((ROOT / "deploy" / "docker-compose.tls.yml").read_text())
    return Deployment(compose, (ROOT / "deploy" / "Dockerfile").read_text(), tls)


@pytest.fixture(params=SERVICE_NAMES)
def service(request: pytest.FixtureRequest) -> str:
    """Each service of the mesh."""
    return str(request.param)


@pytest.fixture
def config_class(service: str) -> type[ServerConfig]:
    """Its settings."""
    found: type[ServerConfig] = import_module(f"mnemesh_{service}.config").Config
    return found
