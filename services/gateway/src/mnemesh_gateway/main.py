"""The entry point of the process."""

from mnemesh_kit import run

from mnemesh_gateway.config import Config
from mnemesh_gateway.wiring import assemble


def main() -> int:
    """Runs the gateway; returns the exit code."""
    return run.main(Config.from_env, assemble)
