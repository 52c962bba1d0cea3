"""The process: configuration in, exit code out."""

from mnemesh_kit import run

from mnemesh_recall.config import Config
from mnemesh_recall.wiring import assemble

COMMANDS = {"maintain": "mnemesh_recall.maintenance", "rebuild": "mnemesh_recall.maintenance"}


def main() -> int:
    """Runs the recall service until it is stopped, or runs one maintenance command."""
    return run.main(Config.from_env, assemble, COMMANDS)
