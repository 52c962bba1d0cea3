"""Processors of the operator: code from installed packages that changes inputs and tool results before they are kept.

What a package needs to bring one stands here; docs/processors.md tells how.
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
