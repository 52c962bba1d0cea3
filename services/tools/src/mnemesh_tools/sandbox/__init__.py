"""The sandbox: runs one tool's source as a process that can reach nothing but what it was given.

This package needs the standard library only and knows nothing of the service around it.
"""

from mnemesh_tools.sandbox.isolation import Isolation, Level
from mnemesh_tools.sandbox.sandbox import Sandbox, SandboxSettings, SandboxUnavailable
from mnemesh_tools.sandbox.task import AgentView, Outcome, OutcomeStatus, Task

__all__ = [
    "AgentView",
    "Isolation",
    "Level",
    "Outcome",
    "OutcomeStatus",
    "Sandbox",
    "SandboxSettings",
    "SandboxUnavailable",
    "Task",
]
