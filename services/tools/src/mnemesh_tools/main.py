"""The entry point of the process."""

from mnemesh_kit import run

from mnemesh_tools.config import Config
from mnemesh_tools.wiring import assemble

COMMANDS = {"maintain": "mnemesh_tools.maintenance"}


def main() -> int:
    """Runs the tools service, or its maintenance; returns the exit code."""
    return run.main(Config.from_env, assemble, COMMANDS)
