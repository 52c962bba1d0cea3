"""Builds the service from its parts. Only this module chooses implementations."""

from pathlib import Path

import structlog
from mnemesh.tools.v1 import (
    execution_service_pb2_grpc,
    mcp_servers_service_pb2_grpc,
    tools_service_pb2_grpc,
    web_service_pb2_grpc,
)
from mnemesh_kit.audit import AuditLog
from mnemesh_kit.ids import IdSource, RandomIds
from mnemesh_kit.secret_variables import SecretBox, SecretVariables
from mnemesh_kit.server import Assembly, periodic
from mnemesh_kit.services import service
from mnemesh_kit.sql import open_database
from mnemesh_kit.time import Clock, SystemClock
from mnemesh_retrieval.registry import make_embedder
from mnemesh_sandbox import Isolation, Level, Sandbox
from mnemesh_sandbox.egress.downloads import Downloader
from mnemesh_sandbox.egress.policy import Resolver

from mnemesh_tools.config import Config
from mnemesh_tools.mcp_clients.contracts import McpLimits
from mnemesh_tools.mcp_clients.pool import McpPool
from mnemesh_tools.model.packages import Ecosystem
from mnemesh_tools.model.tools import BuiltinTools
from mnemesh_tools.packages import Builds, Installer, NpmInstaller, PackageCache, UvInstaller
from mnemesh_tools.rpc.executions import ExecutionServicer
from mnemesh_tools.rpc.mcp_servers import McpServersServicer
from mnemesh_tools.rpc.tools import ToolsServicer
from mnemesh_tools.rpc.web import WebServicer
from mnemesh_tools.store.tools import ToolStore
from mnemesh_tools.usecases.executions import ExecutionService, ProgramService
from mnemesh_tools.usecases.mcp_contacts import McpContacts, McpTargets
from mnemesh_tools.usecases.mcp_programs import McpPrograms
from mnemesh_tools.usecases.mcp_servers import McpAuthorizationService, McpServerService
from mnemesh_tools.usecases.mcp_tools import McpToolService
from mnemesh_tools.usecases.networks import ToolNetworks
from mnemesh_tools.usecases.packages import PackageService
from mnemesh_tools.usecases.slots import FairSlots
from mnemesh_tools.usecases.tool_search import ToolFinder
from mnemesh_tools.usecases.tools import PROCESSES, SourceReader, ToolEnvironments, ToolService
from mnemesh_tools.usecases.web import WebService
from mnemesh_tools.web.pages import PageReader
from mnemesh_tools.web.searcher import Brave, Exa, Provider, Searxng, Tavily, WebSearcher

PURGE_SECONDS = 3600.0
MCP_IDLE_SECONDS = 30.0
CONCURRENT_BUILDS = 2
CONCURRENT_DOWNLOADS = 16
USER_AGENT = "Mozilla/5.0 (compatible; mnemesh/1.0)"
_BUILDS = ""
"""Stands for an organization where names of package indexes are resolved. No organization has this id."""
_log = structlog.get_logger("mnemesh.tools")


async def assemble(
    config: Config,
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    sandbox: Sandbox | None = None,
    mcp_limits: McpLimits | None = None,
) -> Assembly:
    """Migrates the database, probes the sandbox and returns the service, ready to start."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    database = await open_database(config, "mnemesh_tools")
    store = ToolStore(database, clock)
    sandbox = (sandbox or await Sandbox.open(config.sandbox)).warmed(config.warm_processes)
    _log_isolation(sandbox.isolation, config)
    sources = SourceReader(PROCESSES if config.auth_key_file is None else 1)
    resolver = Resolver()
    networks = ToolNetworks(config.egress, resolver)
    packages = _packages(config, store, clock, sandbox, networks, resolver)
    embedder = make_embedder(config.embedder, config.embedder_settings)
    box = SecretBox.of_service(config.secrets_key_file, config.database, config.data_path)
    environments = ToolEnvironments(SecretVariables(box, clock))
    definitions = ToolService(
        store, clock, ids, BuiltinTools.load(), sources, config.support, packages.prepare, environments
    )
    finder = ToolFinder(store, embedder, definitions.seed_builtin_tools)
    tools = ToolsServicer(definitions, finder, packages.status, environments.fingerprint)
    slots = FairSlots(config.max_concurrent, config.slots_per_organization)
    programs = McpPrograms(
        config.programs,
        store,
        sandbox.with_settings(config.program_sandbox),
        networks,
        packages,
        clock,
        config.found_node[0],
    )
    await programs.sweep(store.find_existing_mcp_servers)
    limits = mcp_limits or McpLimits()
    pool = McpPool(None if config.auth_key_file is None else config.egress.allows_address, limits, programs)
    mcp_servers, mcp_tools = _mcp(box, store, clock, ids, pool, programs, definitions)
    executions = ExecutionServicer(
        ExecutionService(store, sandbox, slots, sources, networks, packages, environments, config.support),
        ProgramService(store, sandbox, slots, networks, config.support),
    )
    searcher = _searcher(config, clock)
    web = _web(config, searcher, sandbox, networks, resolver, slots)
    return Assembly(
        name="tools",
        servicers=[
            (tools_service_pb2_grpc.add_ToolServiceServicer_to_server, tools),
            (execution_service_pb2_grpc.add_ExecutionServiceServicer_to_server, executions),
            (mcp_servers_service_pb2_grpc.add_McpServerServiceServicer_to_server, mcp_servers),
            (web_service_pb2_grpc.add_WebServiceServicer_to_server, WebServicer(web)),
        ],
        service_names=service("tools").proto_services,
        audit_log=AuditLog(database, clock, config.audit_retention_days),
        background=[
            periodic(PURGE_SECONDS, store.purge_ledger),
            periodic(PURGE_SECONDS, lambda: programs.sweep(store.find_existing_mcp_servers)),
            periodic(MCP_IDLE_SECONDS, pool.close_idle),
        ],
        metrics=[
            *slots.metrics(),
            *networks.metrics(),
            *packages.metrics(),
            *pool.metrics(),
            *programs.metrics(),
            *mcp_tools.metrics(),
            *web.metrics(),
        ],
        properties=_properties(sandbox.isolation, config),
        close=[
            database.close,
            packages.close,
            sandbox.close,
            resolver.close,
            embedder.close,
            pool.close,
            *([] if searcher is None else [searcher.close]),
        ],
    )


def _mcp(
    box: SecretBox,
    store: ToolStore,
    clock: Clock,
    ids: IdSource,
    pool: McpPool,
    programs: McpPrograms,
    definitions: ToolService,
) -> tuple[McpServersServicer, McpToolService]:
    targets = McpTargets(box, allows_programs=programs.settings.is_allowed)
    contacts = McpContacts(store, clock, ids, targets, pool, definitions.seed_builtin_tools)
    servers = McpServerService(store, clock, ids, targets, pool, contacts, programs)
    authorizations = McpAuthorizationService(store, clock, targets, pool, contacts)
    tools = McpToolService(store, clock, targets, pool)
    return McpServersServicer(servers, tools, authorizations, targets.fingerprint), tools


def _searcher(config: Config, clock: Clock) -> WebSearcher | None:
    if config.web_search == "none":
        return None
    providers: dict[str, Provider] = {each.name: each for each in (Exa(), Tavily(), Brave(), Searxng(clock))}
    return WebSearcher(providers[config.web_search], config.web_search_url, config.web_search_key)


def _web(
    config: Config,
    searcher: WebSearcher | None,
    sandbox: Sandbox,
    networks: ToolNetworks,
    resolver: Resolver,
    slots: FairSlots,
) -> WebService:
    per_organization = CONCURRENT_DOWNLOADS if config.auth_key_file is None else CONCURRENT_DOWNLOADS // 2
    downloads = FairSlots(CONCURRENT_DOWNLOADS, per_organization)
    reader = None
    if config.network != "none":
        reader = PageReader(Downloader(config.egress, USER_AGENT), sandbox)
    return WebService(searcher, reader, networks, resolver, downloads, slots)


def _packages(
    config: Config, store: ToolStore, clock: Clock, sandbox: Sandbox, networks: ToolNetworks, resolver: Resolver
) -> PackageService:
    builds = Builds(sandbox, config.builds, config.sandbox, networks.audit_build, resolver.for_organization(_BUILDS))
    installers: dict[Ecosystem, Installer] = {
        Ecosystem.PIP: UvInstaller(builds, config.package_index, allows_source=config.packages == "source"),
        Ecosystem.NPM: NpmInstaller(builds, config.npm_registry, config.found_node[0]),
    }
    cache = PackageCache(Path(config.data_dir) / "packages")
    per_organization = CONCURRENT_BUILDS if config.auth_key_file is None else 1
    slots = FairSlots(CONCURRENT_BUILDS, per_organization, config.package_build_seconds)
    return PackageService(store, clock, installers, cache, wait_seconds=config.package_wait_seconds, slots=slots)


def _properties(isolation: Isolation, config: Config) -> dict[str, str]:
    """Returns the sandbox's level, and the bounds that hold on this host."""
    bounds = {f"sandbox.{resource}": bound for resource, bound in isolation.bounds.items()}
    network: str = config.network
    if isolation.level is not Level.FULL:
        network = "none: the sandbox is below the level full"
    elif isolation.network_problem is not None:
        network = f"none: {isolation.network_problem}"
    return {
        "sandbox.network": network,
        "sandbox.level": isolation.level.name.lower(),
        "sandbox.minimum": config.min_sandbox,
        **bounds,
    }


def _log_isolation(isolation: Isolation, config: Config) -> None:
    fields = {
        "level": isolation.level.name.lower(),
        "minimum": config.min_sandbox,
        "bounds": isolation.bounds,
        "network_problem": isolation.network_problem,
        "layers": sorted(isolation.layers),
        "missing": dict(isolation.missing),
    }
    if isolation.level < config.sandbox.minimum:
        _log.error("sandbox_below_minimum", **fields)
    elif isolation.level is Level.MINIMAL:
        _log.warning("sandbox_minimal", **fields)
    else:
        _log.info("sandbox_probed", **fields)
