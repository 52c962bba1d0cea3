"""Programs of stdio servers: their settings, and the launchers that other clients use in their place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_no_nul, require_text

from mnemesh_tools.model.definitions import network_grant, require_valid_packages
from mnemesh_tools.model.tools import Requirement

MAX_ARGS: Final = 100
MAX_ARGUMENT_CHARS: Final = 20_000
AGENT_VARIABLE: Final = "AGENT_ID"
PROGRAM_CPU_SECONDS: Final = 86_400
"""The processor time of each process of a program, which may run for days."""
_INTERPRETER: Final = re.compile(
    r"(?:python|pypy|perl|ruby|php)[\d.]*|(?:ba|da|z|k)?sh|env|node|deno|bun|uv|uvx|npm|npx|pipx|java|busybox"
)
_PIP_VERSION: Final = re.compile(r"(?P<name>[A-Za-z0-9._-]+(?:\[[^\]]*\])?)(?:@|==)(?P<version>.+)")


@dataclass(frozen=True, slots=True)
class McpProgram:
    """A program, with what it can use."""

    command: str = ""
    args: tuple[str, ...] = ()
    pip_requirements: tuple[Requirement, ...] = ()
    npm_requirements: tuple[Requirement, ...] = ()
    network_hosts: tuple[str, ...] = ()
    persistent_directory: bool = False

    @property
    def identity(self) -> tuple[str, ...]:
        """The program that receives the environment: its command, and the names of its packages without versions.

        The arguments belong to it if the command is an interpreter, because they name the program then.
        """
        packages = sorted(item.name.lower() for item in (*self.pip_requirements, *self.npm_requirements))
        is_interpreter = _INTERPRETER.fullmatch(self.command.rpartition("/")[2]) is not None
        return (self.command, *packages, *(self.args if is_interpreter else ()))


NO_PROGRAM: Final = McpProgram()


@dataclass(frozen=True, slots=True)
class ProgramHealth:
    """The processes of a server on this host."""

    running: int
    starts: int
    crashes: int
    started_at: datetime | None
    stderr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSettings:
    """The settings of programs."""

    is_allowed: bool
    trusted_organizations: frozenset[str]
    """Their programs run without a sandbox; "*" stands for all organizations."""
    processes: int
    per_organization: int
    directory: Path
    """Contains the directories of servers."""

    def trusts(self, organization_id: str) -> bool:
        """Returns whether the programs of an organization run without a sandbox."""
        return bool({organization_id, "*"} & self.trusted_organizations)


def require_valid_program(program: McpProgram, prefix: str) -> None:
    """Checks the settings.

    Raises:
        InvalidArgument: One breaks its rule. The error names its field.
    """
    require_text(program.command, f"{prefix}.command", min_chars=1, max_chars=2_000, allow_blank=False)
    if len(program.args) > MAX_ARGS:
        raise InvalidArgument(f"{prefix}.args must have at most {MAX_ARGS} entries.", field=f"{prefix}.args")
    for index, text in enumerate(program.args):
        require_text(text, f"{prefix}.args[{index}]", max_chars=MAX_ARGUMENT_CHARS)
        require_no_nul(text, f"{prefix}.args[{index}]")
    require_no_nul(program.command, f"{prefix}.command")
    require_valid_packages(program.pip_requirements, f"{prefix}.pip_requirements")
    require_valid_packages(program.npm_requirements, f"{prefix}.npm_requirements", is_pip=False)
    network_grant(program.network_hosts, f"{prefix}.network_hosts", allow_network=False)
    started = started_program(program, prefix)
    require_valid_packages(started.pip_requirements, f"{prefix}.args")
    require_valid_packages(started.npm_requirements, f"{prefix}.args", is_pip=False)


def started_program(program: McpProgram, prefix: str = "mcp_server.stdio") -> McpProgram:
    """Returns the program itself in place of the launcher `uvx` or `npx`, whose package becomes a requirement.

    Raises:
        InvalidArgument: The arguments of the launcher name no package.
    """
    if program.command not in ("uvx", "npx"):
        return program
    is_npm = program.command == "npx"
    packages, rest = _launched(program.args, is_npm=is_npm, place=f"{prefix}.args")
    named = packages[0] if packages else rest[0]
    requirement = _npm_requirement(named) if is_npm else _pip_requirement(named)
    command = rest[0] if packages else (_npm_program(requirement.name) if is_npm else requirement.name)
    added = tuple(_npm_requirement(text) if is_npm else _pip_requirement(text) for text in packages or rest[:1])
    pip, npm = program.pip_requirements, program.npm_requirements
    return replace(
        program,
        command=command,
        args=tuple(rest[1:]),
        pip_requirements=pip if is_npm else (*pip, *added),
        npm_requirements=(*npm, *added) if is_npm else npm,
    )


def _launched(args: Sequence[str], *, is_npm: bool, place: str) -> tuple[list[str], list[str]]:
    """Returns the packages that options name, and the arguments from the first that is no option on."""
    flags = ("-y", "--yes", "-q", "--quiet")
    naming = ("-p", "--package") if is_npm else ("--from", "--with")
    packages: list[str] = []
    rest = list(args)
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option in naming:
            if not equals and not rest:
                break
            packages.append(value if equals else rest.pop(0))
        elif option not in flags and option != "--":
            raise InvalidArgument(
                f"{place}: the option {option[:100]} is not supported. Name the package in "
                f"{'npm' if is_npm else 'pip'}_requirements and its program in command.",
                field=place,
            )
    if not rest:
        raise InvalidArgument(f"{place} must name a package.", field=place)
    return packages, rest


def _pip_requirement(text: str) -> Requirement:
    match = _PIP_VERSION.fullmatch(text)
    if match is None:
        return Requirement(text, None)
    version = match["version"]
    return Requirement(match["name"], None if version == "latest" else version)


def _npm_requirement(text: str) -> Requirement:
    name, at, version = text[1:].partition("@")
    return Requirement(text[0] + name, version if at and version != "latest" else None)


def _npm_program(name: str) -> str:
    """Returns the program that `npx` starts for a package: that of its own name, without the scope."""
    return name.rpartition("/")[2]
