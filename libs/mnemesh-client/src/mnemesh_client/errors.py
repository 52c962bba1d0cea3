"""What a client may have to catch: the mesh's typed errors, and a run that failed."""

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
    """A turn ended in an error; `reason` says which (PROVIDER_AUTH, CONTEXT_WINDOW_OVERFLOW, …), `run_id` where."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "FAILED_PRECONDITION"

    def __init__(self, run_id: str, error: runs_pb2.RunError) -> None:
        super().__init__(error.message or "The run failed.", **dict(error.metadata))
        self.run_id = run_id
        self.reason = error.reason or type(self).reason
