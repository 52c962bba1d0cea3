"""The process: configuration in, exit code out."""

from __future__ import annotations

from mnemesh_kit import run

from mnemesh_archival.config import Config
from mnemesh_archival.wiring import assemble

WORK = {"maintain": "mnemesh_archival.maintenance"}


def main() -> int:
    """Runs the archival service until it is told to stop, or its maintenance once."""
    return run.main(Config.from_env, assemble, WORK)
