"""The use cases of the tools of MCP servers: lists, and runs."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog
from mnemesh_kit import call_context
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import DeadlineExceeded, InvalidArgument, MnemeshError, RequestIdReused
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import require_id
from mnemesh_kit.metrics import Counter, Metric
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.text import require_no_nul
from mnemesh_kit.time import Clock
from mnemesh_types.tools import McpCaller, SchemaStatus

from mnemesh_tools.errors import McpOutcomeUnknown, McpServerUnauthorized, McpServerUnreachable
from mnemesh_tools.mcp_clients.contracts import (
    McpCallLost,
    McpCallTimedOut,
    McpContactFailed,
    McpTarget,
    McpUnauthorized,
)
from mnemesh_tools.mcp_clients.pool import McpPool
from mnemesh_tools.model.executions import parse_arguments
from mnemesh_tools.model.mcp_servers import McpServer
from mnemesh_tools.model.mcp_tools import (
    McpRun,
    McpRunResult,
    McpTool,
    McpToolKey,
    McpToolOrder,
    OnProgress,
    bounded_content,
    no_progress,
)
from mnemesh_tools.model.tools import DEFAULT_RETURN_CHARS, MAX_TIMEOUT_SECONDS
from mnemesh_tools.schema import coerce
from mnemesh_tools.store.tools import ToolStore, ToolTransaction
from mnemesh_tools.usecases import changes
from mnemesh_tools.usecases.mcp_contacts import McpTargets

_MARGIN_SECONDS: Final = 0.5
"""The part of the caller's time that is left for the answer."""
_RunKey = tuple[str, str]
_log = structlog.get_logger("mnemesh.tools.mcp")


@dataclass(frozen=True, slots=True)
class _Call:
    target: McpTarget
    tool: str
    arguments: dict[str, Any]
    seconds: float | None
    """The longest time; None is that of the limits."""
    return_chars: int
    """The largest number of characters of the result."""
    on_progress: OnProgress


class McpToolService:
    """Lists and runs the tools of MCP servers. A run is carried out at most once."""

    def __init__(self, store: ToolStore, clock: Clock, targets: McpTargets, pool: McpPool) -> None:
        self._store = store
        self._clock = clock
        self._targets = targets
        self._pool = pool
        self._running: dict[_RunKey, tuple[str, asyncio.Future[McpRunResult]]] = {}
        self._runs = Counter("mnemesh_tools_mcp_runs", "Runs of tools of MCP servers, by outcome.", ["outcome"])

    async def list_tools(
        self,
        caller: Principal,
        server_id: str,
        statuses: Sequence[SchemaStatus],
        order: McpToolOrder,
        page: PageQuery,
    ) -> Page[McpTool]:
        """Returns a page of the tools that were last read. Raises McpServerNotFound."""
        require_id(server_id, "mcp_server", "mcp_server_id")

        def read(tx: ToolTransaction) -> Page[McpTool]:
            changes.get_mcp_server(tx, server_id)
            return tx.mcp.list_tools(server_id, statuses, order, page)

        return await self._store.read(caller.organization_id, read)

    async def get_tool(self, caller: Principal, server_id: str, key: McpToolKey) -> McpTool:
        """Returns one tool.

        Raises:
            McpServerNotFound: The organization has no such server.
            ToolNotFound: The server does not offer the tool.
        """
        _require_valid_key(server_id, key)
        return await self._store.read(caller.organization_id, lambda tx: changes.get_mcp_tool(tx, server_id, key))

    async def run_tool(
        self,
        caller: Principal,
        server_id: str,
        key: McpToolKey,
        arguments: str,
        agent: McpCaller,
        seconds: float | None,
        request: RequestKey | None,
        on_progress: OnProgress = no_progress,
    ) -> McpRunResult:
        """Runs a tool once. An error of the tool is a result, not an exception. `on_progress` receives its progress.

        Raises:
            McpServerNotFound: The organization has no such server.
            ToolNotFound: The server does not offer the tool.
            ToolArgumentsInvalid: The arguments do not match the tool's schema.
            InvalidArgument: The limit of the time is not possible, or a variable of the settings has no value.
            McpTransportDisabled: This server does not start programs.
            McpServerUnreachable: The server does not answer. The tool was not run.
            McpServerUnauthorized: The server asks for an authorization. The tool was not run.
            McpOutcomeUnknown: The connection broke during the run, or the result of an earlier request was lost.
            DeadlineExceeded: The run did not end in time.
        """
        _require_valid_key(server_id, key)
        if seconds is not None and not 0 < seconds <= MAX_TIMEOUT_SECONDS:
            raise InvalidArgument(
                f"timeout must be greater than 0 and at most {MAX_TIMEOUT_SECONDS} seconds.", field="timeout"
            )
        server, tool, limit = await self._store.read(caller.organization_id, lambda tx: _found(tx, server_id, key))
        values = _checked_arguments(tool, arguments)
        target = self._targets.target(caller.organization_id, server.id, server.transport, agent)
        call = _Call(target, tool.remote.name, values, seconds, limit, on_progress)
        if request is not None:
            return await self._run_once(request, call)
        await self._store.note_execution()
        return await self._run(call)

    def metrics(self) -> list[Metric]:
        return [self._runs]

    async def _run_once(self, request: RequestKey, call: _Call) -> McpRunResult:
        """Runs a tool unless the request has begun before: then waits for its result, or returns it."""
        key = (request.organization_id, request.request_id)
        if key in self._running:
            fingerprint, running = self._running[key]
            if fingerprint != request.fingerprint:
                raise RequestIdReused(
                    "This request_id was used before with other content. Use a new one.", field="request_id"
                )
            return await asyncio.shield(running)
        future: asyncio.Future[McpRunResult] = asyncio.get_running_loop().create_future()
        self._running[key] = (request.fingerprint, future)
        try:
            result = await self._begin(request, call)
            future.set_result(result)
            return result
        except MnemeshError as error:
            future.set_exception(error)
            future.exception()  # not only for those who wait
            raise
        finally:
            del self._running[key]
            if not future.done():
                future.set_exception(McpOutcomeUnknown(call.target.server_id, "The first call was cancelled."))
                future.exception()

    async def _begin(self, request: RequestKey, call: _Call) -> McpRunResult:
        organization_id, now = request.organization_id, self._clock.now()
        known: McpRun | None = await self._store.write(organization_id, lambda tx: tx.mcp.begin_run(request, now))
        if known is not None:
            if known.result is None:
                raise McpOutcomeUnknown(call.target.server_id, "The result of an earlier call was lost.")
            return msgspec.msgpack.decode(known.result, type=McpRunResult)
        try:
            result = await self._run(call)
        except (McpServerUnreachable, McpServerUnauthorized):
            await self._store.write(organization_id, lambda tx: tx.mcp.forget_run(request))
            raise
        encoded = msgspec.msgpack.encode(result)
        await self._store.write(organization_id, lambda tx: tx.mcp.end_run(request, encoded))
        return result

    async def _run(self, call: _Call) -> McpRunResult:
        target, started = call.target, time.monotonic()
        bound = self._pool.limits.execute_seconds if call.seconds is None else call.seconds
        left = call_context.remaining()
        if left is not None:
            bound = min(bound, max(0.0, left - min(_MARGIN_SECONDS, left / 2)))
        outcome = "cancelled"
        try:
            result = await self._pool.call_tool(target, call.tool, call.arguments, bound, call.on_progress)
            outcome = "success" if result.ok else "error"
        except McpUnauthorized as error:
            outcome = "unauthorized"
            raise McpServerUnauthorized(target.server_id, str(error)) from error
        except McpContactFailed as error:
            outcome = "unreachable"
            raise McpServerUnreachable(target.server_id, str(error)) from error
        except McpCallLost as error:
            outcome = "lost"
            raise McpOutcomeUnknown(target.server_id, f"{str(error).rstrip('.')}.") from error
        except McpCallTimedOut as error:
            outcome = "timed_out"
            progress = f" It reported the progress {error}." if str(error) else ""
            raise DeadlineExceeded(
                f"The tool {call.tool} did not end within {bound:g} seconds.{progress} Its outcome is unknown."
            ) from error
        finally:
            elapsed = time.monotonic() - started
            self._runs.inc(outcome)
            _log.info(
                "mcp_tool_run",
                mcp_server_id=target.server_id,
                tool=call.tool,
                outcome=outcome,
                duration_ms=round(elapsed * 1000, 1),
            )
        content, structured = bounded_content(result.content, result.structured, call.return_chars)
        return McpRunResult(result.ok, content, structured, elapsed)


def _found(tx: ToolTransaction, server_id: str, key: McpToolKey) -> tuple[McpServer, McpTool, int]:
    """Returns a server, its tool, and the largest number of characters of the tool's result."""
    tool = changes.get_mcp_tool(tx, server_id, key)
    definition = tx.get_tool(tool.tool_id)
    limit = DEFAULT_RETURN_CHARS if definition is None else definition.spec.return_char_limit
    return changes.get_mcp_server(tx, server_id), tool, limit


def _require_valid_key(server_id: str, key: McpToolKey) -> None:
    require_id(server_id, "mcp_server", "mcp_server_id")
    if key.tool_id is not None:
        require_id(key.tool_id, "tool", "tool.tool_id")
    elif key.name:
        require_no_nul(key.name, "tool.name")
    else:
        raise InvalidArgument("tool must be set to tool_id or name.", field="tool")


def _checked_arguments(tool: McpTool, arguments: str) -> dict[str, Any]:
    """Returns the arguments, converted to the types that the schema declares. The server checks them, too.

    Raises:
        ToolArgumentsInvalid: They do not match the schema.
    """
    parsed = parse_arguments(arguments)
    if tool.status is SchemaStatus.INVALID:
        return parsed
    schema = json.loads(tool.remote.input_schema)
    try:
        return coerce(parsed, {**schema, "additionalProperties": schema.get("additionalProperties", True)}, "arguments")
    except (TypeError, AttributeError, ValueError):
        return parsed
