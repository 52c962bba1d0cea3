"""The entry point of the process."""

from mnemesh_kit import run

from mnemesh_blocks.config import Config
from mnemesh_blocks.wiring import assemble

COMMANDS = {"maintain": "mnemesh_blocks.maintenance"}


def main() -> int:
    """Runs the blocks service, or its maintenance; returns the exit code."""
    return run.main(Config.from_env, assemble, COMMANDS)
