"""The process: configuration in, exit code out."""

from __future__ import annotations

import asyncio
import sys

from engram_kit import run
from engram_kit.config import StartupError
from engram_kit.logs import configure_logging

from engram_recall.config import Config
from engram_recall.wiring import assemble

USAGE = "usage: python -m engram_recall [maintain | rebuild]"


def main() -> int:
    """Runs the recall service until it is told to stop, or work on its files once."""
    match sys.argv[1:]:
        case []:
            return run.main(Config.from_env, assemble)
        case ["maintain" | "rebuild" as work]:
            return _work(work)
        case _:
            return run.refuse(StartupError(USAGE))


def _work(work: str) -> int:
    from engram_recall.maintenance import maintain, rebuild  # noqa: PLC0415 - the service does without it

    async def tell() -> None:
        config = Config.from_env()
        configure_logging(config, work)
        async for line in maintain(config) if work == "maintain" else rebuild(config):
            print(line)  # noqa: T201 - for the operator

    try:
        asyncio.run(tell())
    except StartupError as error:
        return run.refuse(error)
    return run.OK
