"""The entry point of the process."""

from mnemesh_kit import run

from mnemesh_archival.config import Config
from mnemesh_archival.wiring import assemble

COMMANDS = {"maintain": "mnemesh_archival.maintenance"}


def main() -> int:
    """Runs the archival service until it is stopped, or its maintenance once. Returns the exit code."""
    return run.main(Config.from_env, assemble, COMMANDS)
