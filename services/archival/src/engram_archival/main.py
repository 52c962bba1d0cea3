"""The process: configuration in, exit code out."""

from __future__ import annotations

from engram_kit import run

from engram_archival.config import Config
from engram_archival.wiring import assemble

WORK = {"maintain": "engram_archival.maintenance"}


def main() -> int:
    """Runs the archival service until it is told to stop, or its maintenance once."""
    return run.main(Config.from_env, assemble, WORK)
