"""Errors in the shapes of OpenAI's and of Letta's API. Both have the statuses of the same table, except for a few."""

from collections.abc import Mapping
from math import ceil
from typing import Any, Final

import grpc
import msgspec
from mnemesh_kit.errors import InvalidArgument, MnemeshError
from starlette.responses import Response

from mnemesh_gateway.http.body import json_problem

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
_LETTA_STATUS: Final = {**_STATUS, grpc.StatusCode.FAILED_PRECONDITION: 409}
_BY_REASON: Final[Mapping[str, int]] = {
    "BODY_TOO_LARGE": 413,
    "METHOD_NOT_ALLOWED": 405,
    "UNSUPPORTED_MEDIA_TYPE": 415,
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
    "BUDGET_EXCEEDED": 429,
}
"""The statuses of reasons that a run fails with, or that have one of their own."""
_LETTA_BY_REASON: Final[Mapping[str, int]] = {
    **_BY_REASON,
    "VALIDATION": 422,
    "EMBEDDER_UNKNOWN": 404,
    "ARCHIVE_NOT_FOUND": 404,
    "BLOCK_LABEL_NOT_FOUND": 404,
    "ERASED": 404,
    "BLOCK_LIMIT_EXCEEDED": 422,
    "BLOCK_READ_ONLY": 400,
    "NOTHING_TO_COMPACT": 400,
    "NO_PENDING_APPROVAL": 400,
    "APPROVAL_MISMATCH": 400,
    "MCP_SERVER_UNREACHABLE": 502,
    "MCP_SERVER_UNAUTHORIZED": 502,
    "PROVIDER_AUTH": 401,
    "PROVIDER_PAYMENT_REQUIRED": 402,
}
_CODES: Final[Mapping[str, str]] = {
    "CONTEXT_WINDOW_OVERFLOW": "context_length_exceeded",
    "SYSTEM_PROMPT_OVERFLOW": "context_length_exceeded",
    "UNAUTHENTICATED": "invalid_api_key",
    "PROVIDER_RATE_LIMITED": "rate_limit_exceeded",
    "PROVIDER_PAYMENT_REQUIRED": "insufficient_quota",
    "BUDGET_EXCEEDED": "insufficient_quota",
    "PROVIDER_CONTENT_FILTER": "content_filter",
}
_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_TYPED: Final[Mapping[str, str]] = {
    "PROVIDER_REFUSED": "llm_bad_request",
    "PROVIDER_CONTENT_FILTER": "llm_bad_request",
    "PROVIDER_AUTH": "llm_authentication",
    "PROVIDER_PAYMENT_REQUIRED": "llm_insufficient_credits",
    "BUDGET_EXCEEDED": "llm_insufficient_credits",
    "PROVIDER_RATE_LIMITED": "llm_rate_limit",
    "PROVIDER_TIMEOUT": "llm_timeout",
    "PROVIDER_BAD_ANSWER": "llm_error",
    "PROVIDER_UNAVAILABLE": "llm_error",
    "MCP_SERVER_UNREACHABLE": "mcp_connection_error",
    "MCP_SERVER_UNAUTHORIZED": "mcp_connection_error",
}
"""The errors whose body is an object `error` with a type, by reason."""
_FINAL: Final = frozenset({"PENDING_APPROVAL", "NO_PENDING_APPROVAL", "CANCELLED", "ALREADY_EXISTS"})
"""The 409s that a retry cannot change. The clients retry every 409 unless the answer forbids it."""


class ValidationFailed(InvalidArgument):
    """A path, a query or a body has the wrong form. `problems` are dicts with type, loc, msg and input."""

    reason = "VALIDATION"

    def __init__(self, *problems: Mapping[str, Any], example: str | None = None) -> None:
        super().__init__(repr([dict(problem) for problem in problems]))
        self.example = example


def invalid_id(parameter: str, prefix: str, value: str) -> ValidationFailed:
    """Returns the error for a path parameter that is not an id of its kind."""
    primitive = parameter.removesuffix("_id")
    problem = {
        "type": "string_pattern_mismatch",
        "loc": ("path", parameter),
        "msg": f"String should match pattern '{prefix}-{{uuid4}}'",
        "input": value[:200],
    }
    return ValidationFailed(problem, example=f"{primitive}-123e4567-e89b-42d3-8456-426614174000")


def invalid_value(place: str, error: Exception) -> ValidationFailed:
    """Returns the error for a query or a body that is not JSON or does not match its schema.

    Args:
        place: "query" or "body".
        error: one of `JSON_ERRORS`.
    """
    text, _, path = json_problem(error).partition(" - at `$")
    fields = path.rstrip("`").replace("[", ".").replace("]", "").split(".")
    missing = text.partition("missing required field `")[2].rstrip("`")
    loc = (place, *(int(name) if name.isdigit() else name for name in fields if name), *((missing,) if missing else ()))
    is_json = isinstance(error, msgspec.ValidationError)
    kind = "missing" if missing else "value_error" if is_json else "json_invalid"
    return ValidationFailed({"type": kind, "loc": loc, "msg": text, "input": None})


def invalid_field(message: str, *loc: str | int) -> ValidationFailed:
    """Returns the error for a value that has the right type and breaks a rule; `loc` is its path, as `"body", "x"`."""
    return ValidationFailed({"type": "value_error", "loc": loc, "msg": message, "input": None})


def invalid_json(message: str, *loc: str) -> ValidationFailed:
    """Returns the error for a body, or a file in it, that is not JSON that can be read."""
    return ValidationFailed({"type": "json_invalid", "loc": loc, "msg": message, "input": None})


def status_of(error: MnemeshError) -> int:
    """Returns the HTTP status of an error in OpenAI's API."""
    return _BY_REASON.get(error.reason) or _STATUS.get(error.code, 500)


def retry_headers(error: MnemeshError) -> dict[str, str]:
    """Returns the header of an answer that says when a retry may succeed, in whole seconds; none if nothing does."""
    seconds = error.retry_after_seconds
    return {} if seconds is None else {"retry-after": str(ceil(seconds))}


def error_to_json(error: MnemeshError) -> dict[str, Any]:
    """Returns the body of an error in OpenAI's API."""
    status = status_of(error)
    code = error.metadata.get("code") or _CODES.get(error.reason) or error.reason.lower()
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.field, "code": code}}


def letta_status_of(error: MnemeshError) -> int:
    """Returns the HTTP status of an error in Letta's API."""
    return _LETTA_BY_REASON.get(error.reason) or _LETTA_STATUS.get(error.code, 500)


def letta_response(error: MnemeshError) -> Response:
    """Returns the answer of Letta's API to a request that failed."""
    status = letta_status_of(error)
    headers = retry_headers(error)
    if error.reason in _FINAL:
        headers["x-should-retry"] = "false"
    if status == 401 and error.reason == "UNAUTHENTICATED":
        headers["www-authenticate"] = "Bearer"
    return Response(msgspec.json.encode(_letta_body(error)), status, headers, media_type="application/json")


def _letta_body(error: MnemeshError) -> dict[str, Any]:
    kind = _TYPED.get(error.reason)
    if kind is not None:
        return {"error": {"type": kind, "message": error.message, "detail": f"{error.reason}: {error.message}"}}
    body: dict[str, Any] = {"detail": error.message}
    if letta_status_of(error) == 404 and "not found" not in error.message.lower():
        # Programs look for these words, which all 404s of the Letta server have.
        body["detail"] = f"Not found: {error.message}"
    if isinstance(error, ValidationFailed):
        body["trace_id"] = ""
        if error.example is not None:
            body["examples"] = [error.example]
    elif error.reason == "PENDING_APPROVAL":
        body["detail"] = (
            "The agent is waiting for approval of a tool call. "
            "Please approve or deny the pending request before continuing."
        )
        body["error_code"] = error.reason
        body["pending_request_id"] = error.metadata.get("approval_request_id")
    elif error.reason == "CONVERSATION_BUSY":
        body["run_id"] = error.metadata.get("run_id")
    if error.field is not None:
        body["field"] = error.field
    return body
