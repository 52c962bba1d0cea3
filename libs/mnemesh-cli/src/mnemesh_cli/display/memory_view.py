"""The display of core memory."""

from __future__ import annotations

from mnemesh.blocks.v1 import blocks_pb2
from rich.console import Console
from rich.panel import Panel
from rich.text import Text


def print_memory(console: Console, memory: blocks_pb2.CoreMemory) -> None:
    """Prints all blocks, each with its label, size and limit."""
    if not memory.blocks:
        console.print("no blocks", style="dim")
    for block in memory.blocks:
        marks = ", read-only" if block.read_only else ""
        title = f"{block.label} ({len(block.value)}/{block.limit}{marks})"
        if console.is_terminal:
            console.print(Panel(Text(block.value or " "), title=Text(title), title_align="left"))
        else:
            console.print(f"[{title}]\n{block.value}", markup=False)
