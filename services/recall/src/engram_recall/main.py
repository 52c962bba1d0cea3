"""The process: configuration in, exit code out."""

from __future__ import annotations

from engram_kit import run

from engram_recall.config import Config
from engram_recall.wiring import assemble


def main() -> int:
    """Runs the recall service until it is told to stop."""
    return run.main(Config.from_env, assemble)
