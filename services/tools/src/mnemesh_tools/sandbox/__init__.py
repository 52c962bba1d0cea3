"""The sandbox: executes the source of one tool in an isolated process.

This package imports only the standard library, and nothing else of the service.
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
