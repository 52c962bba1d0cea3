"""The errors of the gateway, and those of the mesh that it handles."""

import grpc
from mnemesh_kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    MnemeshError,
    NotFound,
    ResourceExhausted,
    Unavailable,
)


class InvalidRequest(InvalidArgument):
    """A field of a request has the wrong type or value. `field` is the name in OpenAI's API: `messages[0].role`."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message, field=param, code=code)


class UnsupportedParameter(InvalidRequest):
    """The gateway cannot do what a parameter asks for."""

    def __init__(self, param: str, advice: str, value: str | None = None) -> None:
        shown = f"'{param}'" if value is None else f"The value {value!r} of '{param}'"
        super().__init__(f"{shown} is not supported. {advice}", param, "unsupported_parameter")


class BodyTooLarge(ResourceExhausted):
    """The body of a request is larger than the limit."""

    reason = "BODY_TOO_LARGE"


class MethodNotAllowed(InvalidArgument):
    """The path exists, but not with this HTTP method."""

    reason = "METHOD_NOT_ALLOWED"


class UnsupportedMediaType(InvalidArgument):
    """The body of a request has a content type that the path does not take."""

    reason = "UNSUPPORTED_MEDIA_TYPE"


class UnknownAgent(NotFound):
    """No agent has the id or the name that a request gives as model."""

    def __init__(self, model: str, known: tuple[str, ...]) -> None:
        names = f" Agents: {', '.join(known)}." if known else ""
        super().__init__(
            f"The model {model[:200]!r} does not exist: no agent has this id or name.{names}",
            field="model",
            code="model_not_found",
        )


class UnknownEmbedder(NotFound):
    """The mesh has no embedder with the handle that a request gives as model."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(
            f"The model {model[:200]!r} does not exist: {reason[:500]}. Use the handle of an embedder, such as "
            "mnemesh/wordllama-256.",
            field="model",
            code="model_not_found",
        )


class ApprovalRequired(FailedPrecondition):
    """The agent waits for a person to approve calls of its own tools, which OpenAI's API cannot express."""

    reason = "PENDING_APPROVAL"


class RunFailed(MnemeshError):
    """A run ended with an error. `reason` and `metadata` are those of the run."""

    def __init__(self, reason: str, message: str, metadata: dict[str, str]) -> None:
        super().__init__(message, **metadata)
        self.reason = reason
        # A run that failed because a service was away has the reason of a code.
        self.code = getattr(grpc.StatusCode, reason, grpc.StatusCode.INTERNAL)


class PendingApproval(FailedPrecondition):
    """The conversation waits for the results of tool calls."""

    reason = "PENDING_APPROVAL"


class NoPendingApproval(FailedPrecondition):
    """No call waits for these results, or other results were stored for it."""

    reason = "NO_PENDING_APPROVAL"


class ApprovalMismatch(InvalidArgument):
    """The results are not those of the calls that wait."""

    reason = "APPROVAL_MISMATCH"


class OtidReused(InvalidArgument):
    """A message was sent before, beside or with other content."""

    reason = "OTID_REUSED"


class McpServerUnreachable(Unavailable):
    """An MCP server does not answer, or refuses."""

    reason = "MCP_SERVER_UNREACHABLE"
    final = True

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(f"The MCP server {name[:200]!r} cannot be used: {cause}")


class McpAccessDenied(FailedPrecondition):
    """A person did not authorize the access to an MCP server, or its authorization server refused."""


class EmbedderUnknown(InvalidArgument):
    """Archival cannot build an embedder."""

    reason = "EMBEDDER_UNKNOWN"


REMOTE = (PendingApproval, NoPendingApproval, ApprovalMismatch, OtidReused, EmbedderUnknown)
"""The errors of the mesh that the gateway handles."""
