"""Builds the service from its parts. Only this module chooses implementations."""

import asyncio

from mnemesh.agents.v1 import runs_service_pb2_grpc
from mnemesh.server.v1 import server_service_pb2, server_service_pb2_grpc
from mnemesh_client import Addresses, Mnemesh
from mnemesh_kit.call_context import Role
from mnemesh_kit.channels import Channels
from mnemesh_kit.config import TlsSettings
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.heavy_work import ByteBudget, HeavyWork
from mnemesh_kit.listener import Listener, ListenerParts
from mnemesh_kit.local_calls import LocalServers
from mnemesh_kit.server import Assembly, periodic
from mnemesh_kit.time import Clock, SystemClock
from starlette.responses import Response
from starlette.types import Scope

from mnemesh_gateway.config import Config
from mnemesh_gateway.errors import REMOTE
from mnemesh_gateway.http.app import App
from mnemesh_gateway.http.body import Bodies
from mnemesh_gateway.http.chat import ChatEndpoint
from mnemesh_gateway.http.connect import ConnectApp
from mnemesh_gateway.http.console import ConsoleApp
from mnemesh_gateway.http.embeddings import EmbeddingsEndpoint
from mnemesh_gateway.http.guard import Guard
from mnemesh_gateway.http.listener import HttpListener
from mnemesh_gateway.http.mcp import McpEndpoint
from mnemesh_gateway.http.responses import ResponsesEndpoint
from mnemesh_gateway.letta.app import LettaApp
from mnemesh_gateway.letta.jobs import POLL_SECONDS, CallbackClient, CallbackSender
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import Profile
from mnemesh_gateway.usecases.agents import AgentService, EmbeddingsService
from mnemesh_gateway.usecases.answering import RunsClient
from mnemesh_gateway.usecases.chat import ChatService
from mnemesh_gateway.usecases.sessions import SessionService
from mnemesh_gateway.usecases.tasks import TaskService

READY_SECONDS = 2.0
BODY_BYTES = 512 << 20
"""The most bytes of request bodies in memory; half of them for one organization."""


async def assemble(config: Config, *, clock: Clock | None = None, local: LocalServers | None = None) -> Assembly:
    """Returns the service, ready to start. Nothing connects before the first request."""
    clock = clock or SystemClock()
    # The tokens of clients are verified here. The gateway calls the mesh for their principals, as a client.
    tls = TlsSettings.of(config)
    channels = Channels(local=local, errors=REMOTE, auth_key_file=config.auth_key_file, tls=tls)
    orchestrator = channels.channel(config.orchestrator_target)
    agents, runs = AgentService(orchestrator, clock), RunsClient(orchestrator)
    sessions = SessionService(orchestrator, channels.channel(config.blocks_target), clock)
    chat = ChatService(agents, sessions, runs, clock)
    tasks = TaskService(agents, runs, orchestrator, clock)
    embeddings = EmbeddingsService(channels.channel(config.archival_target))
    info = server_service_pb2_grpc.ServerServiceStub(orchestrator)

    async def is_ready() -> bool:
        try:
            await info.GetServerInfo(server_service_pb2.GetServerInfoRequest(), timeout=READY_SECONDS)
        except MnemeshError:
            return False
        return True

    client = Mnemesh(
        Addresses(
            orchestrator=config.orchestrator_target,
            blocks=config.blocks_target,
            recall=config.recall_target,
            archival=config.archival_target,
            tools=config.orchestrator_target,
            files=config.orchestrator_target,
        ),
        channels=Channels(local=local, auth_key_file=config.auth_key_file, tls=tls),
    )
    work = HeavyWork()
    bodies = Bodies(config.max_body_mb << 20, work, ByteBudget(BODY_BYTES, BODY_BYTES // 2))
    mcp = McpEndpoint(client, agents, bodies)
    connect = ConnectApp(orchestrator, work, bodies.budget)
    app = App(
        ChatEndpoint(chat, tasks, bodies, strict=config.strict_parameters).complete,
        ResponsesEndpoint(chat, bodies, strict=config.strict_parameters).create,
        EmbeddingsEndpoint(embeddings, bodies).create,
        agents,
        sessions,
        is_ready,
        mcp,
        connect,
        ConsoleApp(),
        debug_sessions=config.debug_sessions,
    )

    stopping = asyncio.Event()
    letta_mesh = Mesh(orchestrator, client, stopping)
    letta = LettaApp(letta_mesh, Profile(config.letta_profile), bodies, app)
    # Callbacks of all organizations are called by the mesh itself.
    own = Channels(local=local, errors=REMOTE, auth_key_file=config.auth_key_file, role=Role.SERVICE, tls=tls)
    caller = CallbackClient(
        config.callback_hosts, public_only=config.auth_key_file is not None and not config.callback_hosts
    )
    ended_runs = runs_service_pb2_grpc.RunServiceStub(own.channel(config.orchestrator_target))
    callbacks = CallbackSender(letta_mesh, ended_runs, caller)

    def listener(parts: ListenerParts) -> Listener:
        def error_response(scope: Scope, error: MnemeshError) -> Response | None:
            return letta.error_response(scope, error) or connect.error_response(scope, error)

        guard = Guard(letta, config, parts.authenticator, parts.metrics, error_response)
        return HttpListener(guard, config, stopping)

    return Assembly(
        name="gateway",
        listener=listener,
        background=[periodic(POLL_SECONDS, callbacks.send_due)],
        close=[channels.close, own.close, tasks.close, mcp.close, client.close, work.close, callbacks.close],
    )
