"""One session with a server: connected in a task of its own, used by many calls."""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

import httpx2
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, CallToolResult, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from mnemesh_kit.network import failure_of_connection
from pydantic import ValidationError

from mnemesh_tools.mcp_clients.contracts import (
    Listing,
    McpCallLost,
    McpCallTimedOut,
    McpContactFailed,
    McpTarget,
    McpUnauthorized,
    RemoteResult,
)
from mnemesh_tools.mcp_clients.results import ListedTools, progress_from_sdk, result_from_sdk
from mnemesh_tools.mcp_clients.transports import (
    Exchange,
    OpenTransport,
    ProgramOutput,
    Transports,
    current_exchange,
    end_task,
    with_output,
)
from mnemesh_tools.model.mcp_servers import TransportType
from mnemesh_tools.model.mcp_tools import MAX_LISTING_CHARS, MAX_TOOLS, McpProgress, OnProgress

T = TypeVar("T")
_UNKNOWN_SESSION: Final = re.compile(
    r"(bad request: |not found: )?(session (id )?(terminated|not found|expired|is invalid|invalid|is required)"
    r"|(unknown|invalid|missing|expired|no valid|no) (mcp )?session( id)?( provided)?|server not initialized)\.?",
    re.IGNORECASE,
)
"""The answers of servers that do not know the session, for example after a restart. They have not run the tool."""
_OF_THE_CALL: Final = (413, 429)
"""The statuses of refusals that say nothing about the session: the model gets them."""
_LOST: Final = ("Connection closed", "SSE stream ended", "SSE stream failed")
"""The beginnings of the SDK's own errors about calls whose answer cannot arrive any more."""
_CLOSE_SECONDS: Final = 3.0
"""The longest time of an orderly end."""


class McpSession:
    """A connection to one target. The SDK's scopes are entered and left in the session's own task."""

    def __init__(self, target: McpTarget, transports: Transports, on_change: Callable[[], None]) -> None:
        """Creates a session that is not connected. `on_change` is called when the server announces other tools."""
        self._target = target
        self._transports = transports
        self._on_change = on_change
        self._output = ProgramOutput(target.redactor)
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Client] | None = None
        self._failure: BaseException | None = None
        self._refused_with: int | None = None
        self._unused = asyncio.Event()
        self.calls = 0
        """The number of calls that use the session now."""
        self.used_at = time.monotonic()

    @property
    def is_open(self) -> bool:
        """True while the session's task runs."""
        return self._task is not None and not self._task.done() and not self._closing.is_set()

    async def connect(self, seconds: float) -> None:
        """Connects.

        Raises:
            McpContactFailed: The server does not answer in time, or refuses.
        """
        self._ready = asyncio.get_running_loop().create_future()
        self._ready.add_done_callback(_note_retrieved)  # nobody may wait for it any more
        self._task = asyncio.create_task(self._run(self._ready), name="mcp-session")
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._ready)
        except TimeoutError:
            await self.close()
            error = McpContactFailed(f"The server did not answer within {seconds:g} seconds.")
            raise with_output(error, self._output) from None
        except BaseException:
            await self.close()
            raise

    async def list_tools(self, seconds: float) -> Listing:
        """Returns the tools of the server.

        Raises:
            McpContactFailed: The server does not answer in time, refuses, or has too many tools.
        """

        async def read(client: Client) -> Listing:
            listed = ListedTools(self._target, maps_headers=client.protocol_version in MODERN_PROTOCOL_VERSIONS)
            cursor: str | None = None
            cursors: set[str | None] = set()
            while True:
                page = await client.list_tools(cursor=cursor)
                listed.add(page.tools)
                cursors.add(cursor)
                cursor = page.next_cursor
                if cursor is not None and cursor in cursors:
                    raise McpContactFailed("The server repeats the pages of its list of tools.")
                if listed.count > MAX_TOOLS:
                    raise McpContactFailed(f"The server has more than {MAX_TOOLS:,} tools.")
                if listed.schema_chars > MAX_LISTING_CHARS:
                    raise McpContactFailed(
                        f"The schemas of the server have more than {MAX_LISTING_CHARS:,} characters."
                    )
                if cursor is None:
                    return Listing(listed.tools, client.protocol_version, tuple(listed.problems))

        try:
            return await self._call(read, seconds)
        except McpCallTimedOut:
            raise McpContactFailed(f"The server did not list its tools within {seconds:g} seconds.") from None
        except (McpCallLost, MCPError) as error:
            raise McpContactFailed(self._described(error)) from error
        except (ValidationError, RuntimeError, ValueError) as error:  # the SDK's checks of the answer
            raise McpContactFailed(f"The list of tools is not valid: {self._described(error)}") from error

    async def call_tool(
        self, name: str, arguments: dict[str, Any], seconds: float, on_progress: OnProgress
    ) -> RemoteResult:
        """Runs a tool once. An error that the server reports is a result.

        Args:
            name: The name of the tool on the server.
            arguments: Its arguments.
            seconds: The longest time.
            on_progress: Receives the progress that the server reports.

        Raises:
            McpContactFailed: The server does not know the session any more, so the tool was not run.
            McpCallLost: The connection broke during the call.
            McpCallTimedOut: The call did not end in time.
        """
        last: McpProgress | None = None

        async def note(progress: float, total: float | None, message: str | None) -> None:
            nonlocal last
            reported = progress_from_sdk(progress, total, None if message is None else self._target.masked(message))
            if reported is not None:
                last = reported
                on_progress(reported)

        async def call(client: Client) -> CallToolResult:
            # The SDK would list the tools again after the call, and refuse results that differ from the tool's own
            # schema. The tool has run by then, and its result is worth more to the model than an error.
            client.session.validate_tool_result = _accept  # type: ignore[method-assign]
            return await client.call_tool(name, arguments, progress_callback=note)

        try:
            # In a thread: the search of a long text for secrets takes too long for the event loop.
            return await asyncio.to_thread(result_from_sdk, await self._call(call, seconds), self._target)
        except McpCallTimedOut as error:
            raise McpCallTimedOut("" if last is None else str(last)) from error
        except MCPError as error:
            if isinstance(_innermost(self._failure), McpUnauthorized):
                raise McpUnauthorized(self._described(error)) from error
            if _UNKNOWN_SESSION.fullmatch(error.message.strip()):
                raise McpContactFailed(self._described(error)) from error
            return RemoteResult(ok=False, content=(self._described(error),))
        except (RuntimeError, ValidationError) as error:  # the SDK's checks of the result
            return RemoteResult(ok=False, content=(f"The result is not valid: {self._described(error)}",))

    async def close(self) -> None:
        """Ends the session. Calls that use it fail."""
        self._closing.set()
        task = self._task
        if task is None:
            return
        done, _ = await asyncio.wait({task}, timeout=_CLOSE_SECONDS)
        if not done:
            await end_task(task)

    async def close_when_unused(self) -> None:
        """Ends the session after the calls that use it. No further one does."""
        try:
            while self.calls:
                self._unused.clear()
                await self._unused.wait()
        finally:
            await self.close()

    async def _call(self, call: Callable[[Client], Awaitable[T]], seconds: float) -> T:
        """Runs a call; it ends with the session.

        Raises:
            McpContactFailed: The server has refused the call or did not receive it, so that nothing was run.
            McpCallLost: The session ended.
            McpCallTimedOut: The call did not end in time.
        """
        if self._task is None or self._ready is None or not self.is_open:
            raise McpContactFailed("The session is closed.")
        self.calls += 1
        exchange = Exchange()
        token = current_exchange.set(exchange)
        running = asyncio.ensure_future(call(self._ready.result()))
        current_exchange.reset(token)
        awaited: set[asyncio.Future[Any]] = {running, self._task}
        if self._target.transport is TransportType.SSE:
            awaited.add(exchange.refused)  # the SDK does not tell the call
        try:
            done, _ = await asyncio.wait(awaited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise McpCallTimedOut
            if running in done and not _is_lost(running):
                self._raise_refusal(exchange, running)
                return running.result()
            if running not in done or _is_of_session(running):
                self._closing.set()
                await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)  # its end says why
            raise self._lost(exchange, running)
        finally:
            self.calls -= 1
            self.used_at = time.monotonic()
            if not self.calls:
                self._unused.set()
            await end_task(running)

    def _raise_refusal(self, exchange: Exchange, ended: asyncio.Future[Any]) -> None:
        """Raises McpContactFailed if the server has refused a call before it ran anything, for a reason of the session.

        A new session may help then. Other refusals are for the model, such as those of arguments.
        """
        error, status = ended.exception(), exchange.status
        if self._target.transport is TransportType.STDIO or not isinstance(error, MCPError) or status is None:
            return
        is_of_call = status in _OF_THE_CALL or (error.code == INVALID_PARAMS and "session" not in error.message.lower())
        if exchange.was_not_run and not is_of_call:
            kind = McpUnauthorized if isinstance(_innermost(self._failure), McpUnauthorized) else McpContactFailed
            raise kind(self._described(error, status))

    def _lost(self, exchange: Exchange, call: asyncio.Future[Any]) -> Exception:
        """Returns the error of a call whose connection broke."""
        cause = _innermost(self._failure)
        if isinstance(cause, McpContactFailed):
            return type(cause)(self._described(cause))
        if cause is None and call.done() and not call.cancelled():
            cause = call.exception()
        if cause is not None:
            text = self._described(cause, exchange.status)
        else:
            text = "The connection broke." if exchange.status is None else f"It was refused (HTTP {exchange.status})."
        is_not_run = self._target.transport is not TransportType.STDIO and exchange.was_not_run
        return McpContactFailed(text) if is_not_run else McpCallLost(text)

    async def _run(self, ready: asyncio.Future[Client]) -> None:
        try:
            async with AsyncExitStack() as stack:
                opened = self._transports.open(self._target, self._output, self._note_status)
                streams = await stack.enter_async_context(opened)
                client = Client(
                    OpenTransport(streams, self._closing.set),
                    cache=None,
                    raise_exceptions=False,
                    message_handler=self._note_message,
                )
                await stack.enter_async_context(client)
                listening = asyncio.create_task(self._listen(client))
                stack.push_async_callback(end_task, listening)
                if not ready.done():
                    ready.set_result(client)
                await self._closing.wait()
        except asyncio.CancelledError:
            if not ready.done():
                ready.set_exception(McpContactFailed("The connection was closed."))
        except BaseException as error:  # groups of the errors of the SDK's tasks, too
            self._failure = error
            cause = _innermost(error)
            if not ready.done():
                kind = type(cause) if isinstance(cause, McpContactFailed) else McpContactFailed
                ready.set_exception(kind(self._described(error)))
        finally:
            self._closing.set()

    async def _listen(self, client: Client) -> None:
        """Waits for changes of the tools, at a server with the protocol in which they are asked for."""
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed or client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        with contextlib.suppress(Exception):  # without it, the tools are read at the next refresh
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._on_change()

    async def _note_message(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._on_change()

    def _described(self, error: BaseException, status: int | None = None) -> str:
        """Returns the innermost cause in one line, without secrets."""
        cause = _innermost(error)
        if isinstance(cause, httpx2.RequestError) and (cause.__cause__ or cause.__context__) is not None:
            text = f"{failure_of_connection(self._target.url, cause)}."
        else:
            text = " ".join(str(cause).split()) or type(cause).__name__
        status = status or self._refused_with
        return self._target.masked(text)[:500] + ("" if status is None else f" (HTTP {status})")

    def _note_status(self, status: int) -> None:
        self._refused_with = status if status >= 400 else None


async def _accept(name: str, result: CallToolResult) -> None:
    """Stands for the SDK's check of results."""


def _note_retrieved(ended: asyncio.Future[Any]) -> None:
    """Keeps asyncio from logging an error that no caller waits for."""
    if not ended.cancelled():
        ended.exception()


def _is_lost(call: asyncio.Future[Any]) -> bool:
    """Returns whether a call has ended without an answer. Servers use the code of such an error for their own, too."""
    error = None if call.cancelled() else call.exception()
    return isinstance(error, MCPError) and error.code == CONNECTION_CLOSED and error.message.startswith(_LOST)


def _is_of_session(call: asyncio.Future[Any]) -> bool:
    """Returns whether a call was lost with its session; else only its own stream broke."""
    return not call.done() or str(call.exception()) == _LOST[0]


def _innermost(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
