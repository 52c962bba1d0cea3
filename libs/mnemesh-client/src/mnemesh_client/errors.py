"""The errors that a client raises: the typed errors of the mesh, and a failed run."""

from __future__ import annotations

import grpc
from mnemesh.agents.v1 import runs_pb2
from mnemesh_kit.errors import (
    Aborted,
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    MnemeshError,
    NotFound,
    PermissionDenied,
    RequestIdReused,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)

__all__ = [
    "Aborted",
    "AlreadyExists",
    "DeadlineExceeded",
    "FailedPrecondition",
    "Internal",
    "InvalidArgument",
    "MnemeshError",
    "NotFound",
    "PermissionDenied",
    "RequestIdReused",
    "ResourceExhausted",
    "RunFailed",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
]


class RunFailed(MnemeshError):
    """A turn ended in an error.

    Attributes:
        run_id: the id of the failed run.
        reason: the reason of the error, such as PROVIDER_AUTH or CONTEXT_WINDOW_OVERFLOW.
    """

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "FAILED_PRECONDITION"

    def __init__(self, run_id: str, error: runs_pb2.RunError) -> None:
        super().__init__(error.message or "The run failed.", **dict(error.metadata))
        self.run_id = run_id
        self.reason = error.reason or type(self).reason
