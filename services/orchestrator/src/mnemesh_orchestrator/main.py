"""The entry point of the process."""

from mnemesh_kit import run

from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.wiring import assemble

WORK = {"maintain": "mnemesh_orchestrator.maintenance"}


def main() -> int:
    """Runs the orchestrator until it is stopped, or its maintenance once. Returns the exit code."""
    return run.main(Config.from_env, assemble, WORK)
