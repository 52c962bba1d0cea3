"""One service as a process: started with its log, watched, stopped."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_LAUNCH: Final = str(Path(__file__).with_name("launch.py"))
_LARGEST_LOG: Final = 20 * 1024 * 1024
_LAST_WORDS: Final = 8192
_MARK: Final = "mnemesh: "


class ServiceProcess:
    """The process of one room. It writes nothing but its log, and ends when this process does."""

    def __init__(self, room: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Describes the process; `arguments` are the interpreter's."""
        self.room = room
        self.log = log
        self._arguments = arguments
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Starts the process; its output is appended to the log."""
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > _LARGEST_LOG:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as output:
            self._log_start = output.tell()
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-I", "-S", _LAUNCH, str(os.getpid())),
                    *self._arguments,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=dict(self._environment),
                    start_new_session=True,  # Ctrl-C in the terminal is the supervisor's to pass on
                )
            )
            try:
                self._process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # The process may be there already: whoever stops the service has to know it.
                self._process = await starting
                raise

    async def wait(self) -> int:
        """Waits for the end of the process; its exit code, or the negative number of the signal that ended it."""
        assert self._process is not None, "a service is started before it is waited for"  # noqa: S101
        return await self._process.wait()

    async def stop(self, seconds: float) -> bool:
        """Asks the process to end, and kills it when it has not after `seconds`; whether it ended by itself."""
        if self._process is None or self._process.returncode is not None:
            return True
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            self.kill()
            await self._process.wait()
            return False
        return True

    def kill(self) -> None:
        """Ends the process at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def last_words(self) -> str | None:
        """The line with which the process said why it could not start."""
        with self.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - _LAST_WORDS))
            lines = log.read().decode(errors="replace").splitlines()
        said = [line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)]
        return said[-1] if said else None
