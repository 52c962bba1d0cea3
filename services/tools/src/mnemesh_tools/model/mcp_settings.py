"""The settings of MCP servers: secret values, OAuth, and the programs of stdio servers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_line, require_no_nul, require_text
from mnemesh_types.tools import OAuthGrant, Requirement

from mnemesh_tools.model.definitions import network_grant, require_valid_packages

MAX_VALUE_CHARS: Final = 10_000
MAX_VARIABLES: Final = 200
MAX_VARIABLE_CHARS: Final = 256_000
_VARIABLE: Final = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*(?:\|([^{}]*))?\}\}")
_ONLY_VARIABLES: Final = re.compile(r"(?:\{\{\s*[A-Za-z_][A-Za-z0-9_]*\s*\}\}\s*)+")


@dataclass(frozen=True, slots=True)
class McpSecret:
    """A named value. The name of a token is empty."""

    name: str
    value: str | None = None
    """The value as text: of a request, or one that consists of variables."""
    sealed: bytes | None = None
    """The stored value."""

    def __repr__(self) -> str:
        """Shows no value."""
        return f"McpSecret({self.name!r})"

    @property
    def has_value(self) -> bool:
        return self.value is not None or self.sealed is not None

    @property
    def key(self) -> str:
        """The name under which a value is stored. HTTP headers have no case."""
        return self.name.lower()


def require_valid_secret(secret: McpSecret, field: str, *, is_header: bool = True) -> None:
    """Checks a value of a request.

    Raises:
        InvalidArgument: The value is too long, or no HTTP header (no environment variable) can have it.
    """
    if secret.value is not None:
        require_text(secret.value, f"{field}.value", min_chars=1, max_chars=MAX_VALUE_CHARS)
        if not is_header:
            require_no_nul(secret.value, f"{field}.value")
        elif not is_header_value(secret.value):
            raise InvalidArgument(f"{field}.value must be printable ASCII characters.", field=f"{field}.value")


def is_header_value(value: str) -> bool:
    """Returns whether an HTTP header can have the value."""
    return value.isascii() and value.isprintable()


def consists_of_variables(value: str) -> bool:
    """Returns whether a value has only variables without defaults, and so is not a secret itself."""
    return _ONLY_VARIABLES.fullmatch(value.strip()) is not None


def require_valid_variables(variables: Mapping[str, str]) -> None:
    """Checks the variables of a caller.

    Raises:
        InvalidArgument: There are too many, or they are too long.
    """
    place = "caller.variables"
    if len(variables) > MAX_VARIABLES:
        raise InvalidArgument(f"{place} must have at most {MAX_VARIABLES} entries.", field=place)
    if sum(len(name) + len(value) for name, value in variables.items()) > MAX_VARIABLE_CHARS:
        raise InvalidArgument(f"{place} must be at most {MAX_VARIABLE_CHARS:,} characters.", field=place)


def variables_of(value: str) -> frozenset[str]:
    """Returns the names of the variables in a value."""
    return frozenset(match.group(1) for match in _VARIABLE.finditer(value))


def filled(value: str, variables: Mapping[str, str], missing: set[str]) -> str:
    """Returns a value with its variables replaced. Names without a value and a default are added to `missing`."""

    def one(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        if name in variables:
            return variables[name]
        if default is None:
            missing.add(name)
            return ""
        return default.strip()

    return _VARIABLE.sub(one, value)


MAX_ID_CHARS: Final = 2_000
MAX_SCOPE_CHARS: Final = 2_000
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class OAuthSession:
    """What an authorization leaves: the registration, the tokens and the endpoints of the authorization server."""

    sealed: bytes
    """As JSON."""
    expires_at: datetime | None = None
    """The end of the access token."""

    def __repr__(self) -> str:
        """Shows no value."""
        return "OAuthSession()"


@dataclass(frozen=True, slots=True)
class McpOAuth:
    """The settings. The name of the client secret is empty."""

    grant: OAuthGrant = OAuthGrant.AUTHORIZATION_CODE
    client_id: str | None = None
    client_secret: McpSecret | None = None
    scope: str | None = None
    issuer: str | None = None
    session: OAuthSession | None = None
    """Written by authorizations and refreshes only."""

    @property
    def authorized(self) -> bool:
        """True if there are tokens."""
        return self.session is not None

    @property
    def expires_at(self) -> datetime | None:
        """The end of the access token, if it is known."""
        return None if self.session is None else self.session.expires_at

    @property
    def settings(self) -> "McpOAuth":
        """The settings without the session."""
        return replace(self, session=None)


def require_valid_oauth(oauth: McpOAuth, prefix: str) -> None:
    """Checks the settings.

    Raises:
        InvalidArgument: One breaks its rule. The error names its field.
    """
    for name, text, limit in (("client_id", oauth.client_id, MAX_ID_CHARS), ("scope", oauth.scope, MAX_SCOPE_CHARS)):
        if text is not None:
            require_text(text, f"{prefix}.{name}", min_chars=1, max_chars=limit, allow_blank=False)
            require_line(text, f"{prefix}.{name}")
    if oauth.issuer is not None and not _is_http_url(oauth.issuer):
        raise InvalidArgument(f"{prefix}.issuer must be an http or https URL.", field=f"{prefix}.issuer")
    if oauth.client_secret is not None:
        require_valid_secret(oauth.client_secret, f"{prefix}.client_secret")
    needs = oauth.grant is OAuthGrant.CLIENT_CREDENTIALS
    if oauth.client_id is None and (needs or oauth.client_secret is not None):
        raise InvalidArgument(f"{prefix}.client_id is required.", field=f"{prefix}.client_id")
    if needs and oauth.client_secret is None:
        raise InvalidArgument(f"{prefix}.client_secret is required.", field=f"{prefix}.client_secret")
    if oauth.issuer is None and oauth.client_secret is not None:
        raise InvalidArgument(
            f"{prefix}.issuer is required: the secret is sent to no other authorization server.",
            field=f"{prefix}.issuer",
        )


def require_redirect_uri(uri: str) -> str:
    """Returns the redirect URI if a browser can be sent there safely.

    Raises:
        InvalidArgument: It is not an https URL, and not http on a loopback host.
    """
    require_text(uri, "redirect_uri", min_chars=1, max_chars=MAX_ID_CHARS)
    require_line(uri, "redirect_uri")
    try:
        parts = urlsplit(uri)
        is_valid = (
            (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK))
            and bool(parts.hostname)
            and not parts.fragment
            and parts.username is None
        )
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InvalidArgument(
            "redirect_uri must be an https URL, or an http URL of a loopback host, without a fragment.",
            field="redirect_uri",
        )
    return uri


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and len(text) <= MAX_ID_CHARS


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSettings:
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
    """Returns the packages that options name, and the arguments from the first that is not an option on."""
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
