"""The sandbox: executes the source of one tool in an isolated process.

This package imports only the standard library, and nothing else of the service.
"""

from mnemesh_sandbox.inside.plan import OUTPUT_DIRECTORY
from mnemesh_sandbox.isolation import Isolation, Level
from mnemesh_sandbox.sandbox import Access, Sandbox, SandboxSettings, SandboxUnavailable
from mnemesh_sandbox.task import AgentView, BlockProperties, Language, Outcome, OutcomeStatus, Program, Task

__all__ = [
    "OUTPUT_DIRECTORY",
    "Access",
    "AgentView",
    "BlockProperties",
    "Isolation",
    "Language",
    "Level",
    "Outcome",
    "OutcomeStatus",
    "Program",
    "Sandbox",
    "SandboxSettings",
    "SandboxUnavailable",
    "Task",
]
