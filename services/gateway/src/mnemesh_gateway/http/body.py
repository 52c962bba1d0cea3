"""Request bodies: bounded in size, time and memory, and converted beside the event loop.

Also what is wrong with those that are no JSON.
"""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import msgspec
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import DeadlineExceeded
from mnemesh_kit.heavy_work import ByteBudget, HeavyWork, Slots
from mnemesh_kit.json_bounds import require_bounded_json
from starlette.requests import ClientDisconnect, Request

from mnemesh_gateway.errors import BodyTooLarge, InvalidRequest

JSON_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions that msgspec raises for bytes that it cannot decode."""

T = TypeVar("T")
_NUMBER_FIELD: Final = re.compile(rb'"((?:[^"\\]|\\.){0,200})"\s*+:\s*+\[?+\s*+(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)')
_DIGITS: Final = 400
MAX_VALUES: Final = 100_000
"""How many values the JSON of a body may have: a conversation of ten thousand messages."""
_UPLOAD_BYTES: Final = 2 << 30
_IMPORTS: Final = 4
BODY_SECONDS: Final = 60.0


class Bodies:
    """Reads the bodies of requests and converts them, in bounds per organization and in sum.

    Args:
        max_bytes: the size of the largest body.
        work: converts bodies that are not small.
        budget: of the bytes that are in memory at the same time.
    """

    def __init__(self, max_bytes: int, work: HeavyWork, budget: ByteBudget) -> None:
        self.max_bytes = max_bytes
        self.work = work
        self.budget = budget
        self.uploads = ByteBudget(_UPLOAD_BYTES, _UPLOAD_BYTES // 2)
        """Of the bytes of forms on disk."""
        self.imports = Slots(_IMPORTS, 1)
        """Of imports, which hold what they have read until their end."""

    @asynccontextmanager
    async def read_converted(
        self, request: Request, convert: Callable[[bytes], T], max_values: int = MAX_VALUES
    ) -> AsyncIterator[T]:
        """Yields what `convert` returns for the body of a request. It counts as in memory until the end.

        Args:
            request: the request.
            convert: a function that may run in a thread.
            max_values: how many values the JSON may have.

        Raises:
            BodyTooLarge: the body is larger than `max_bytes`, or has too many values.
            InvalidRequest: it is not JSON by its content type, it is nested too deeply, or the client ended the
                connection.
            DeadlineExceeded: it did not arrive in time.
            ResourceExhausted: too many large bodies are in memory.
        """
        caller = current_principal().organization_id
        with self.budget.reservation(caller) as reserve:
            body = await _read(request, self.max_bytes, reserve)
            yield await self.work.run(caller, len(body), _converted, body, convert, max_values)


def _converted(body: bytes, convert: Callable[[bytes], T], max_values: int) -> T:
    require_bounded_json(body, max_values)
    try:
        return convert(body)
    except OverflowError as error:
        raise number_out_of_range(body) from error


async def _read(request: Request, max_bytes: int, reserve: Callable[[int], None]) -> bytes:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise InvalidRequest("The content type must be application/json.", code="unsupported_media_type")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    chunks, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                reserve(len(chunk))
                chunks.append(chunk)
    except TimeoutError as error:
        raise DeadlineExceeded(f"The body did not arrive within {BODY_SECONDS:.0f} s.") from error
    except ClientDisconnect as error:
        raise InvalidRequest("The connection ended before the body did.") from error
    return b"".join(chunks)


def number_out_of_range(body: bytes) -> InvalidRequest:
    """Returns the error for a body with a number that is too large, which names its field."""
    for found in _NUMBER_FIELD.finditer(body):
        if _is_too_large(found[2]):
            name = found[1].decode(errors="replace")[:100]
            return InvalidRequest(f"Invalid value for '{name}': the number is out of range.", name)
    return InvalidRequest("A number of the body is out of range.")


def _is_too_large(number: bytes) -> bool:
    if len(number) > _DIGITS:
        return True
    value = float(number)
    return not math.isfinite(value) or (number.lstrip(b"-").isdigit() and not -(2**63) <= int(number) < 2**63)


def json_problem(error: Exception) -> str:
    """Returns what is wrong with bytes for which msgspec raised one of `JSON_ERRORS`."""
    match error:
        case RecursionError():
            return "JSON is nested too deeply"
        case UnicodeDecodeError():
            return "JSON is not encoded as UTF-8"
    text = str(error)
    if text == "Input data was truncated":  # so msgspec also calls half of a surrogate pair at the end of a string
        return "JSON is malformed: it ends too early, or a surrogate pair is not complete"
    return text


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body must be at most {max_bytes >> 20} MB. Send fewer messages or smaller images.")
