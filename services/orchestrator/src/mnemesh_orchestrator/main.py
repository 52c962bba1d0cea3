"""The process: configuration in, exit code out."""

from mnemesh_kit import run

from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.wiring import assemble

WORK = {"maintain": "mnemesh_orchestrator.maintenance"}


def main() -> int:
    """Runs the orchestrator until it is told to stop, or its maintenance once."""
    return run.main(Config.from_env, assemble, WORK)
