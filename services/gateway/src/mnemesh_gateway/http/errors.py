"""Errors in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import grpc
from mnemesh_kit.errors import MnemeshError, typed_error

_STATUS: Final[Mapping[grpc.StatusCode, int]] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
_BY_REASON: Final[Mapping[str, int]] = {
    "BODY_TOO_LARGE": 413,
    "METHOD_NOT_ALLOWED": 405,
    "CONTEXT_WINDOW_OVERFLOW": 400,
    "SYSTEM_PROMPT_OVERFLOW": 400,
    "PROVIDER_RATE_LIMITED": 429,
    "PROVIDER_PAYMENT_REQUIRED": 429,
    "PROVIDER_REFUSED": 400,
    "PROVIDER_CONTENT_FILTER": 400,
    "PROVIDER_UNAVAILABLE": 503,
    "PROVIDER_TIMEOUT": 504,
    "PROVIDER_AUTH": 502,
    "PROVIDER_BAD_ANSWER": 502,
    "MODEL_UNKNOWN": 404,
    "CANCELLED": 409,
    "INPUT_REFUSED": 400,
}
"""The statuses of reasons that a run fails with, or that have one of their own."""
_CODES: Final[Mapping[str, str]] = {
    "CONTEXT_WINDOW_OVERFLOW": "context_length_exceeded",
    "SYSTEM_PROMPT_OVERFLOW": "context_length_exceeded",
    "UNAUTHENTICATED": "invalid_api_key",
    "PROVIDER_RATE_LIMITED": "rate_limit_exceeded",
    "PROVIDER_PAYMENT_REQUIRED": "insufficient_quota",
    "PROVIDER_CONTENT_FILTER": "content_filter",
}
_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def status_of(error: MnemeshError) -> int:
    """Returns the HTTP status of an error."""
    return _BY_REASON.get(error.reason) or _STATUS.get(error.code, 500)


def error_to_json(error: MnemeshError) -> dict[str, Any]:
    """Returns the body of an error."""
    status = status_of(error)
    code = error.metadata.get("code") or _CODES.get(error.reason) or error.reason.lower()
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.field, "code": code}}


def typed(error: BaseException) -> MnemeshError:
    """Returns the error that a client may see for any exception."""
    return typed_error(error)
