"""The errors that a client raises: the typed errors of the mesh, and the failures of runs and files."""

import grpc
from mnemesh.agents.v1 import runs_pb2
from mnemesh.files.v1 import files_pb2
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
    "ApprovalRequired",
    "DeadlineExceeded",
    "FailedPrecondition",
    "FileProcessingFailed",
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


class ApprovalRequired(MnemeshError):
    """A run of a group waits until an approval request of one of its agents is answered.

    Attributes:
        run_id: the id of the run of the group.
        agent_id: the id of the agent that asks. `Group.answer` answers it.
        agent_name: its name.
    """

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "PENDING_APPROVAL"

    def __init__(self, run_id: str, agent_id: str, agent_name: str) -> None:
        super().__init__(f"{agent_name} waits for an approval. Answer it.", resource_id=agent_id)
        self.run_id, self.agent_id, self.agent_name = run_id, agent_id, agent_name


class FileProcessingFailed(MnemeshError):
    """A file cannot be processed: the server cannot read it, or not download it.

    Attributes:
        file: the file. Its `error_message` states the cause.
    """

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "FAILED_PRECONDITION"

    def __init__(self, file: files_pb2.File) -> None:
        super().__init__(f"{file.name} cannot be processed: {file.error_message}", resource_id=file.id)
        self.file = file


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
