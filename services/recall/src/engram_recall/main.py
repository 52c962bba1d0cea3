"""The process: configuration in, exit code out."""

from __future__ import annotations

from engram_kit import run

from engram_recall.config import Config
from engram_recall.wiring import assemble

WORK = {"maintain": "engram_recall.maintenance", "rebuild": "engram_recall.maintenance"}


def main() -> int:
    """Runs the recall service until it is told to stop, or work on its files once."""
    return run.main(Config.from_env, assemble, WORK)
