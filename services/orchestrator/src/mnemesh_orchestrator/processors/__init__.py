"""Processors of the operator: code from installed packages that changes inputs and tool results before they are stored.

This package exports what a processor needs. docs/processors.md describes how to write one.
"""

from mnemesh_orchestrator.processors.port import (
    MEMORY_ORDER,
    InputFacts,
    InputProcessor,
    Refused,
    ToolResultFacts,
    ToolResultProcessor,
)

__all__ = ["MEMORY_ORDER", "InputFacts", "InputProcessor", "Refused", "ToolResultFacts", "ToolResultProcessor"]
