"""The entry point of the process."""

from mnemesh_kit import run

from mnemesh_files.config import Config
from mnemesh_files.wiring import assemble

COMMANDS = {"maintain": "mnemesh_files.maintenance"}


def main() -> int:
    """Runs the files service, or its maintenance; returns the exit code."""
    return run.main(Config.from_env, assemble, COMMANDS)
