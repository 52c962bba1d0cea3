"""The asynchronous Python client of mnemesh: `Mnemesh`, handles of agents, and the errors they raise."""

from mnemesh_client.addresses import Addresses
from mnemesh_client.agent import Agent
from mnemesh_client.approvals import approve, deny, returned
from mnemesh_client.errors import (
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
    RunFailed,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from mnemesh_client.inputs import text_of
from mnemesh_client.mnemesh import Mnemesh

__all__ = [
    "Aborted",
    "Addresses",
    "Agent",
    "AlreadyExists",
    "DeadlineExceeded",
    "FailedPrecondition",
    "Internal",
    "InvalidArgument",
    "Mnemesh",
    "MnemeshError",
    "NotFound",
    "PermissionDenied",
    "RequestIdReused",
    "ResourceExhausted",
    "RunFailed",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "approve",
    "deny",
    "returned",
    "text_of",
]
