"""The process: configuration in, exit code out."""

from engram_kit import run

from engram_orchestrator.config import Config
from engram_orchestrator.wiring import assemble


def main() -> int:
    """Runs the orchestrator until it is told to stop."""
    return run.main(Config.from_env, assemble)
