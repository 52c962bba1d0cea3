"""The process: configuration in, exit code out."""

from __future__ import annotations

from mnemesh_kit import run

from mnemesh_tools.config import Config
from mnemesh_tools.wiring import assemble

WORK = {"maintain": "mnemesh_tools.maintenance"}


def main() -> int:
    """Runs the tools service until it is told to stop, or its maintenance once."""
    return run.main(Config.from_env, assemble, WORK)
