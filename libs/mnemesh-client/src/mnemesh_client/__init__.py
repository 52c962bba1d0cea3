"""The asynchronous Python client of mnemesh: `Mnemesh`, handles of agents and groups, and the errors they raise."""

from mnemesh_kit.config import TlsSettings

from mnemesh_client.addresses import Addresses
from mnemesh_client.agent import Agent
from mnemesh_client.agent_files import AgentFiles, window
from mnemesh_client.errors import (
    Aborted,
    AlreadyExists,
    ApprovalRequired,
    DeadlineExceeded,
    FailedPrecondition,
    FileProcessingFailed,
    Internal,
    InvalidArgument,
    MnemeshError,
    NotFound,
    PermissionDenied,
    RequestIdReused,
    ResourceExhausted,
    RunFailed,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from mnemesh_client.groups import Group
from mnemesh_client.inputs import approve, deny, returned, text_of
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_client.results import GroupEvent, GroupReply

__all__ = [
    "Aborted",
    "Addresses",
    "Agent",
    "AgentFiles",
    "AlreadyExists",
    "ApprovalRequired",
    "DeadlineExceeded",
    "FailedPrecondition",
    "FileProcessingFailed",
    "Group",
    "GroupEvent",
    "GroupReply",
    "Internal",
    "InvalidArgument",
    "Mnemesh",
    "MnemeshError",
    "NotFound",
    "PermissionDenied",
    "RequestIdReused",
    "ResourceExhausted",
    "RunFailed",
    "TlsSettings",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "approve",
    "deny",
    "returned",
    "text_of",
    "window",
]
