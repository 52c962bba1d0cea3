"""The asynchronous Python client of engram: `Engram`, agents' handles, and the errors they raise."""

from engram_client.addresses import Addresses
from engram_client.agent import Agent
from engram_client.approvals import approve, deny, returned
from engram_client.engram import Engram
from engram_client.errors import EngramError, RunFailed
from engram_client.inputs import text_of

__all__ = [
    "Addresses",
    "Agent",
    "Engram",
    "EngramError",
    "RunFailed",
    "approve",
    "deny",
    "returned",
    "text_of",
]
