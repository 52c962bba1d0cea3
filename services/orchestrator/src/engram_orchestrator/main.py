"""The process: configuration in, exit code out."""

from engram_kit import run

from engram_orchestrator.config import Config
from engram_orchestrator.wiring import assemble

WORK = {"maintain": "engram_orchestrator.maintenance"}


def main() -> int:
    """Runs the orchestrator until it is told to stop, or its maintenance once."""
    return run.main(Config.from_env, assemble, WORK)
