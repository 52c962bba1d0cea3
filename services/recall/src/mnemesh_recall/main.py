"""The process: configuration in, exit code out."""

from __future__ import annotations

from mnemesh_kit import run

from mnemesh_recall.config import Config
from mnemesh_recall.wiring import assemble

WORK = {"maintain": "mnemesh_recall.maintenance", "rebuild": "mnemesh_recall.maintenance"}


def main() -> int:
    """Runs the recall service until it is told to stop, or work on its files once."""
    return run.main(Config.from_env, assemble, WORK)
