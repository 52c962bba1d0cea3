"""Which requests are admitted: their size, their caller, and how many at once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from mnemesh_kit.access import RpcRule, rule_of
from mnemesh_kit.call_context import Principal, Role, set_principal
from mnemesh_kit.errors import (
    InvalidArgument,
    MnemeshError,
    ResourceExhausted,
    ServerBusy,
    to_trailers,
    typed_error,
)
from mnemesh_kit.retries import service_descriptor

MAX_VALUES: Final = 1_000
"""The largest number of values of a list or a map."""
MAX_IDS: Final = 10_000
"""The largest number of messages or turns that a request names, such as those of a context window."""
MAX_TAGS: Final = 100
"""The largest number of values of a list of tags: each becomes a condition of a query."""
MAX_TEXTS: Final = 2_048
"""The largest number of texts to embed, which is also that of OpenAI's API."""
MAX_NUMBERS: Final = 16_384
"""The largest number of numbers of a vector. Embedding models have less."""
MAX_ALL_VALUES: Final = 100_000
"""The largest number of values of all lists and maps of a request together. The numbers of vectors do not count: they
are bounded by the size of the request."""
_LIMITS: Final = {
    **dict.fromkeys(("tags", "tags_any", "tags_all"), MAX_TAGS),
    **dict.fromkeys(("message_ids", "exclude_message_ids", "turn_ids"), MAX_IDS),
    "texts": MAX_TEXTS,
}
MAX_STREAM_BYTES: Final = 512 * 1024 * 1024
"""The largest size of all requests of a stream together. A server may hold them until the last one has come."""
# A value of a list takes two bytes at least. Smaller requests cannot break a bound and are not examined.
_EXAMINED_BYTES: Final = 2 * MAX_TAGS
_DISCARD_SECONDS: Final = 1.0
_MALFORMED: Final = "The request is not a message of this method; strings must be valid UTF-8."

Parse = Callable[[bytes], Any]


class Unreadable:
    """Replaces the request of a call that is refused because of its bytes.

    gRPC would turn an exception of a deserializer into UNKNOWN, and the exception would keep the bytes in memory.
    """

    __slots__ = ("error",)

    def __init__(self, error: MnemeshError) -> None:
        self.error = error


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    limit: int
    """The largest number of values; 0 for a single message."""
    is_vector: bool
    inner: "tuple[_Field, ...]"
    """The fields with lists of the message, or of each message of the list."""


def bounded_parser(method: str, rule: RpcRule, deserialize: Parse) -> Parse:
    """Returns a function from the bytes of a request to the request, or to `Unreadable`.

    Args:
        method: the path of the RPC.
        rule: the rule of the RPC.
        deserialize: the deserializer of the generated code.

    The errors are ResourceExhausted for a request that is too large, which is not parsed, and InvalidArgument for bytes
    that are not a request of the method, and for a list with too many values.
    """
    # What services of the mesh write has the bounds of the use cases only: windows have more messages than lists may.
    fields = _fields_of(method) if rule.is_for_clients else ()
    parse = sized_parser(rule.max_request_bytes, deserialize)

    def bounded(raw: bytes) -> Any:
        request = parse(raw)
        if fields and len(raw) > _EXAMINED_BYTES and isinstance(request, Message):
            try:
                _require_bounded(request, fields)
            except InvalidArgument as error:
                return Unreadable(error.with_traceback(None))
        return request

    return bounded


def sized_parser(limit: int, deserialize: Parse) -> Parse:
    """Returns a function from the bytes of a request to the request, or to `Unreadable` if there are too many bytes."""

    def parse(raw: bytes) -> Any:
        size = len(raw)
        if size > limit:
            message = f"The request has {size:,} bytes, and this method accepts {limit:,}. Send less at once."
            return Unreadable(ResourceExhausted(message, limit=str(limit), size=str(size)))
        try:
            return deserialize(raw)
        except DecodeError:
            return Unreadable(InvalidArgument(_MALFORMED))

    return parse


async def readable(requests: AsyncIterator[Any], *, bounded: bool = True) -> AsyncIterator[Any]:
    """Yields the requests of a stream, whose size together is limited if it is `bounded`.

    Raises:
        MnemeshError: the error of an unreadable request.
        ResourceExhausted: the requests together are too large.
    """
    size = 0
    async for request in requests:
        if type(request) is Unreadable:
            raise request.error
        size += request.ByteSize() if isinstance(request, Message) else len(request)
        if bounded and size > MAX_STREAM_BYTES:
            message = f"The requests of a stream may have {MAX_STREAM_BYTES:,} bytes together. Use several calls."
            raise ResourceExhausted(message, limit=str(MAX_STREAM_BYTES))
        yield request


async def discard(requests: AsyncIterator[Any]) -> None:
    """Reads the rest of a stream of requests, for at most a second.

    A client that is still sending when the call ends may see a broken connection in place of the error.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            async for _ in requests:
                pass


def _require_bounded(request: Any, fields: tuple[_Field, ...]) -> None:
    total = _count(request, fields, "")
    if total > MAX_ALL_VALUES:
        raise InvalidArgument(f"The lists of a request must have at most {MAX_ALL_VALUES:,} values together.")


def _count(message: Any, fields: tuple[_Field, ...], above: str) -> int:
    """Returns the number of values in the lists of a message."""
    total = 0
    for field in fields:
        if not field.limit:
            if message.HasField(field.name):
                total += _count(getattr(message, field.name), field.inner, f"{above}{field.name}.")
            continue
        values = getattr(message, field.name)
        if not (size := len(values)):
            continue
        if size > field.limit:
            path = above + field.name
            raise InvalidArgument(f"{path} must have at most {field.limit:,} values.", field=path)
        total += 0 if field.is_vector else size
        if field.inner:
            for index, value in enumerate(values):
                total += _count(value, field.inner, f"{above}{field.name}[{index}].")
    return total


def _fields_of(method: str) -> tuple[_Field, ...]:
    _, service, name = method.split("/")
    descriptor = service_descriptor(service)
    return () if descriptor is None else _fields(descriptor.methods_by_name[name].input_type, ())


def _fields(message: Descriptor, above: tuple[str, ...]) -> tuple[_Field, ...]:
    """Returns the fields of a message that are or contain lists. A message within itself is examined once."""
    if message.full_name in above:
        return ()
    found: list[_Field] = []
    for field in message.fields:
        inner: tuple[_Field, ...] = ()
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            inner = _fields(field.message_type, (*above, message.full_name))
        if field.is_repeated:
            is_vector = field.type == FieldDescriptor.TYPE_FLOAT
            limit = MAX_NUMBERS if is_vector else _LIMITS.get(field.name, MAX_VALUES)
            found.append(_Field(field.name, limit, is_vector, inner))
        elif inner:
            found.append(_Field(field.name, 0, False, inner))
    return tuple(found)


OPEN_REQUEST_BYTES: Final = 64 * 1024
"""The largest request of a method that needs no token."""
OPEN_CALLS: Final = 1_000
"""How many calls of methods that need no token may be open at the same time."""
_READERS: Final = 2
_WAITING: Final = 32
_READ_SECONDS: Final = 5.0


class Admission:
    """Checks the role of callers, and bounds the number of calls of clients."""

    def __init__(self, max_calls: int) -> None:
        self._max_calls = max_calls
        self._calls = 0

    def admit(self, method: str, principal: Principal) -> RpcRule:
        """Makes the caller the current principal of this task, and returns the rule of the method.

        The call counts as open until the task ends. Services of the mesh are not counted: the calls of clients cause
        theirs.

        Raises:
            PermissionDenied: the role or the scope of the caller does not allow the call.
            ServerBusy: too many calls are open.
        """
        set_principal(principal)
        rule = rule_of(method)
        if principal.role is Role.SERVICE:
            return rule
        rule.require(principal)
        if self._calls >= self._max_calls:
            raise ServerBusy(
                f"{self._max_calls:,} calls are open. Try again later, or raise MNEMESH_MAX_CONCURRENT_CALLS.",
                limit=str(self._max_calls),
            )
        task = asyncio.current_task()
        if task is not None:
            self._calls += 1
            task.add_done_callback(self._leave)
        return rule

    def _leave(self, _: object) -> None:
        self._calls -= 1


class OpenService:
    """The calls of a service that needs no token: few at once may have their requests read, and these are small."""

    def __init__(self) -> None:
        self._readers = asyncio.Semaphore(_READERS)
        self._waiting = 0
        self._calls = 0

    def wrap(self, handler: Any) -> Any:
        """Returns a handler that reads requests itself, so that it can bound how many are read at the same time."""
        response = "stream" if handler.response_streaming else "unary"
        request = "stream" if handler.request_streaming else "unary"
        behavior = getattr(handler, f"{request}_{response}")

        async def serve(requests: AsyncIterator[Any], context: Any) -> Any:
            try:
                with self:
                    bounded = self._bound(readable(requests))
                    if handler.request_streaming:
                        return await _write_all(behavior(bounded, context), context)
                    async for request in bounded:
                        return await behavior(request, context)
                    raise TimeoutError
            except (MnemeshError, TimeoutError) as error:
                refusal = typed_error(error)
                await context.abort(refusal.code, refusal.message, to_trailers(refusal))

        make_handler = getattr(grpc, f"stream_{response}_rpc_method_handler")
        return make_handler(
            serve,
            request_deserializer=sized_parser(OPEN_REQUEST_BYTES, handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )

    def __enter__(self) -> None:
        """Counts a call.

        Raises:
            ServerBusy: too many calls are open.
        """
        if self._calls >= OPEN_CALLS:
            raise ServerBusy(f"{OPEN_CALLS:,} calls of this service are open. Try again later.")
        self._calls += 1

    def __exit__(self, *_: object) -> None:
        """Counts the end of a call."""
        self._calls -= 1

    async def _read(self, requests: AsyncIterator[Any]) -> Any:
        if self._waiting >= _WAITING:
            raise ServerBusy("Too many requests of this service are being read. Try again later.")
        self._waiting += 1
        try:
            async with asyncio.timeout(_READ_SECONDS), self._readers:
                return await anext(requests)
        finally:
            self._waiting -= 1

    async def _bound(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        while True:
            try:
                request = await self._read(requests)
            except (StopAsyncIteration, TimeoutError):
                return
            yield request


async def _write_all(responses: AsyncIterator[Any], context: Any) -> None:
    async for response in responses:
        await context.write(response)
