"""Operations: an HTTP method and a path, with the schemas of their query, body and result, and their function."""

import asyncio
import functools
import re
import types
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import NoneType
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec
import structlog
from mnemesh_kit.errors import Unimplemented, typed_error
from mnemesh_kit.ids import is_id, new_id
from mnemesh_kit.json_bounds import NestedTooDeeply
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from mnemesh_gateway.http.body import JSON_ERRORS, Bodies
from mnemesh_gateway.http.errors import invalid_field, invalid_id, invalid_json, invalid_value, letta_response
from mnemesh_gateway.letta.mesh import READ_SECONDS, WRITE_SECONDS, Mesh


class Profile(StrEnum):
    """A release. The newest is the default."""

    LETTA_0_16_1 = "0.16.1"
    LETTA_0_16_7 = "0.16.7"

    @property
    def agent_type(self) -> str:
        """The type of agents that are created without one. Those of 0.16.1 speak with send_message."""
        return "memgpt_v2_agent" if self is Profile.LETTA_0_16_1 else "letta_v1_agent"

    @property
    def block_limit(self) -> int:
        """The limit of blocks that are created without one, in characters."""
        return 20_000 if self is Profile.LETTA_0_16_1 else 100_000

    @property
    def announces_runs(self) -> bool:
        """True if the stream of a run begins with a ping that has the id of the run. 0.16.1 sends no such ping."""
        return self is Profile.LETTA_0_16_7


Q = TypeVar("Q")
B = TypeVar("B")
R = TypeVar("R")
ID_PREFIXES: Final[Mapping[str, str]] = {
    "agent_id": "agent",
    "archive_id": "archive",
    "block_id": "block",
    "file_id": "file",
    "folder_id": "source",
    "source_id": "source",
    "group_id": "group",
    "identity_id": "identity",
    "job_id": "job",
    "mcp_server_id": "mcp_server",
    "memory_id": "passage",
    "message_id": "message",
    "passage_id": "passage",
    "provider_id": "provider",
    "run_id": "run",
    "scheduled_message_id": "schedule",
    "step_id": "step",
    "tool_id": "tool",
}
"""The path parameters that are ids, and the prefixes of their ids."""
NO_CONTENT: Final = 204
"""The status of a successful answer without a body."""
_MAX_VALUES: Final = 20_000
"""How many values the JSON of a body may have. Handlers convert them on the event loop."""
_OUT_OF_RANGE: Final = "Value out of range: "
_PRINTABLE: Final = 10**90
_PARAMETER: Final = re.compile(r"{(\w+)}")


_log = structlog.get_logger("mnemesh.http")


_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, B]):
    """One request: its path parameters, its query and its body."""

    mesh: Mesh
    profile: Profile
    bodies: Bodies
    request: Request
    path: Mapping[str, str]
    query: Q
    body: B
    request_id: str = field(default_factory=lambda: new_id("letta"))
    """The request_id of the call's first mutating RPC; a client's Idempotency-Key if it sends one."""

    async def write(self, method: Callable[..., Awaitable[R]], request: Any, *, seconds: float = WRITE_SECONDS) -> R:
        """Makes the call's first mutating RPC."""
        request.request_id = self.request_id
        return await method(request, timeout=seconds)


async def read(method: Callable[..., Awaitable[R]], request: Any) -> R:
    """Makes an RPC that only reads."""
    return await method(request, timeout=READ_SECONDS)


class NoQuery(msgspec.Struct):
    """An operation without query parameters. Others are ignored."""


Handler = Callable[[Call[Any, Any]], Awaitable[Any]]
_Method: TypeAlias = functools.partialmethod[Callable[[Handler], Handler]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `body` is None if a body is not read; `raw` leaves reading it to the handler.

    `status` is that of a successful answer; one with `NO_CONTENT` is empty.
    """

    method: str
    path: str
    handler: Handler
    query: type[msgspec.Struct]
    body: Any
    optional_body: bool
    result: Any
    id_prefixes: Mapping[str, str]
    status: int

    @property
    def name(self) -> str:
        """The name of the function, which is the operation's id."""
        return self.handler.__name__

    @property
    def parameters(self) -> list[str]:
        """The names of the path parameters."""
        return _PARAMETER.findall(self.path)


class Operations:
    """The operations of one resource, in the order in which paths are matched.

    ```python
    operations = Operations()

    @operations.get("/agents/{agent_id}")
    async def retrieve_agent(call: Call[NoQuery, None]) -> AgentState: ...
    ```

    The annotations of the function are the schemas of the query, of the body and of the answer. A function that returns
    None answers `null`.
    """

    def __init__(self) -> None:
        self.all: list[Operation] = []

    def add(
        self,
        method: str,
        path: str,
        *,
        optional_body: bool = False,
        result: Any = None,
        ids: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> Callable[[Handler], Handler]:
        """Returns a decorator that adds an operation.

        Args:
            method: the HTTP method.
            path: below /v1, such as `/agents/{agent_id}`.
            optional_body: whether the body may be missing; it is then empty.
            result: the schema of the answer of a function that returns a response.
            ids: prefixes of path parameters that differ from `ID_PREFIXES`; an empty prefix accepts any text.
            status: the status of a successful answer.
        """
        names: list[str] = _PARAMETER.findall(path)
        prefixes = {name: ID_PREFIXES[name] for name in names if name in ID_PREFIXES} | dict(ids or {})

        def register(handler: Handler) -> Handler:
            given = {name: prefix for name, prefix in prefixes.items() if prefix}
            call, returned = typing.get_type_hints(handler).values()
            query, body = typing.get_args(call)
            body = None if body is NoneType else body
            answer = result or _without_response(returned)
            self.all.append(Operation(method, path, handler, query, body, optional_body, answer, given, status))
            return handler

        return register

    def refuse(self, method: str, path: str, reason: str) -> None:
        """Adds an operation of Letta's API that the mesh cannot serve; it answers 501 with the reason."""

        async def refused(call: Call[NoQuery, None]) -> None:  # noqa: ARG001
            raise Unimplemented(f"{reason} See docs/letta-compatibility.md.")

        refused.__name__ = f"refuse_{method.lower()}" + _PARAMETER.sub(r"\1", path).replace("/", "_").replace(
            "-", "_"
        ).rstrip("_")
        refused.__doc__ = reason
        self.add(method, path, ids=dict.fromkeys(_PARAMETER.findall(path), ""))(refused)

    get: _Method = functools.partialmethod(add, "GET")
    post: _Method = functools.partialmethod(add, "POST")
    put: _Method = functools.partialmethod(add, "PUT")
    patch: _Method = functools.partialmethod(add, "PATCH")
    delete: _Method = functools.partialmethod(add, "DELETE")


class Endpoint:
    """The HTTP side of an operation, an ASGI application: decodes, calls, encodes, and converts errors."""

    def __init__(self, operation: Operation, mesh: Mesh, profile: Profile, bodies: Bodies) -> None:
        self._operation = operation
        self._mesh = mesh
        self._profile = profile
        self._bodies = bodies
        self._lists = _list_fields(operation.query)
        self._decoder = msgspec.json.Decoder(operation.body) if operation.body is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
        response = await self._answer(Request(scope, receive, send))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        try:
            result = await self._result(request)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            failure = typed_error(error)
            if failure is not error:
                _log.exception("unexpected_error", path=request.url.path)
            return letta_response(failure)
        if isinstance(result, Response):
            return result
        status = self._operation.status
        return Response(status_code=status) if status == NO_CONTENT else json_response(result, status)

    async def _result(self, request: Request) -> Any:
        self._require_ids(request)
        query = self._query(request)
        if self._decoder is None:
            return await self._handle(self._call(request, query, None))
        try:
            async with self._bodies.read_converted(request, self._decoded, _MAX_VALUES) as body:
                return await self._handle(self._call(request, query, body))
        except NestedTooDeeply as error:
            raise invalid_json(error.message, "body") from error

    async def _handle(self, call: Call[Any, Any]) -> Any:
        try:
            return await self._operation.handler(call)
        except (OverflowError, ValueError) as error:
            # A number that a field cannot hold. The message does not know how the client names the field.
            loc = _place_of_number(call, error)
            if loc is None:
                raise
            raise invalid_field("The number is out of range", *loc) from error

    def _require_ids(self, request: Request) -> None:
        for name, prefix in self._operation.id_prefixes.items():
            if not is_id(request.path_params[name], prefix):
                raise invalid_id(name, prefix, request.path_params[name])

    def _call(self, request: Request, query: Any, body: Any) -> Call[Any, Any]:
        key = request.headers.get("idempotency-key")
        more = {"request_id": key} if key else {}
        return Call(self._mesh, self._profile, self._bodies, request, request.path_params, query, body, **more)

    def _query(self, request: Request) -> Any:
        if self._operation.query is NoQuery:
            return NoQuery()
        params = request.query_params
        values = {name: params.getlist(name) if name in self._lists else params[name] for name in params}
        # Clients send null as an empty value.
        given = {name: value for name, value in values.items() if value != ""}
        try:
            return msgspec.convert(given, self._operation.query, strict=False)
        except msgspec.ValidationError as error:
            raise invalid_value("query", error) from error

    def _decoded(self, body: bytes) -> Any:
        assert self._decoder is not None, "the operation has a body"  # noqa: S101
        if not body.strip() and self._operation.optional_body:
            body = b"{}"
        try:
            return self._decoder.decode(body)
        except JSON_ERRORS as error:
            raise invalid_value("body", error) from error


def _place_of_number(call: Call[Any, Any], error: Exception) -> tuple[str | int, ...] | None:
    """Returns where the number stands that a message refused; None if the error is another one."""
    text = str(error)
    if isinstance(error, OverflowError):
        shown = ""
    elif text.startswith(_OUT_OF_RANGE):
        shown = text.removeprefix(_OUT_OF_RANGE)
    else:
        return None
    for name, given in (("query", call.query), ("body", call.body)):
        found = _path_of_number(msgspec.to_builtins(given), shown)
        if found is not None:
            return (name, *found)
    return ("body",)


def _path_of_number(value: Any, shown: str) -> tuple[str | int, ...] | None:
    """Returns the path of an integer: of the one that is shown, or else of one that no message can hold."""
    if isinstance(value, int) and not isinstance(value, bool):
        is_it = str(value).startswith(shown) if shown and abs(value) < _PRINTABLE else abs(value) >= 2**63
        return () if is_it else None
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        found = _path_of_number(item, shown)
        if found is not None:
            return (key, *found)
    return None


def json_response(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status, media_type="application/json")


def starlette_routes(
    operations: Sequence[Operation], mesh: Mesh, profile: Profile, bodies: Bodies, *, exact: bool
) -> list[Route]:
    """Returns the routes of operations.

    Letta's collections end with a slash. `exact` keeps them apart from paths without; otherwise both are served,
    because Letta redirects from one to the other.
    """
    routes = []
    for operation in operations:
        endpoint = Endpoint(operation, mesh, profile, bodies)
        path = "/v1" + operation.path
        paths = [path] if exact else [path, path[:-1] if path.endswith("/") else path + "/"]
        routes += [Route(each, endpoint, methods=[operation.method]) for each in paths]
    return routes


def _without_response(hint: Any) -> Any:
    """Returns the schema of an answer, which a function may also return as a response; None for no answer."""
    if hint in (NoneType, Response):
        return None
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    (kind,) = (each for each in kinds if each is not Response)
    return kind


@functools.cache
def _list_fields(schema: type[msgspec.Struct]) -> frozenset[str]:
    """Returns the names of the parameters that may be repeated."""
    hints = typing.get_type_hints(schema)
    return frozenset(name for name, hint in hints.items() if _is_list(hint))


def _is_list(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_is_list(part) for part in typing.get_args(hint))
    return typing.get_origin(hint) is list
