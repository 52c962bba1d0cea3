"""The colours of the chat: of medium lightness, so that they are readable on dark and on light backgrounds."""

from __future__ import annotations

from typing import Final

TOOL: Final = "color(31)"
ADDED: Final = "color(28)"
REMOVED: Final = "color(160)"
WARNING: Final = "color(130)"
MEMORY: Final = "bold color(133)"
SPEAKERS: Final = (TOOL, ADDED, "color(133)", "color(63)", WARNING)
"""The colours of the names of a group's members, in the order in which they first speak."""
