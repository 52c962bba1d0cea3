"""Request bodies: bounded in size and time, and what is wrong with those that are no JSON."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from mnemesh_kit.errors import DeadlineExceeded
from starlette.requests import ClientDisconnect, Request

from mnemesh_gateway.errors import BodyTooLarge, InvalidRequest

JSON_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions that msgspec raises for bytes that it cannot decode."""

_SECONDS: Final = 60.0


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Returns the body of a request.

    Raises:
        BodyTooLarge: It is larger than `max_bytes`.
        InvalidRequest: It is not JSON by its content type, or the client ended the connection.
        DeadlineExceeded: It did not arrive in time.
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise InvalidRequest("The content type must be application/json.", code="unsupported_media_type")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    chunks, size = [], 0
    try:
        async with asyncio.timeout(_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                chunks.append(chunk)
    except TimeoutError as error:
        raise DeadlineExceeded(f"The body did not arrive within {_SECONDS:.0f} s.") from error
    except ClientDisconnect as error:
        raise InvalidRequest("The connection ended before the body did.") from error
    return b"".join(chunks)


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
