"""The process: configuration in, exit code out."""

from __future__ import annotations

from engram_kit import run

from engram_tools.config import Config
from engram_tools.wiring import assemble

WORK = {"maintain": "engram_tools.maintenance"}


def main() -> int:
    """Runs the tools service until it is told to stop, or its maintenance once."""
    return run.main(Config.from_env, assemble, WORK)
