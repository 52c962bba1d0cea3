"""The process of one service: start, wait, stop, and the error line it printed when it could not start."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mnemesh_kit.services import READY_VARIABLE

_LAUNCH: Final = str(Path(__file__).with_name("launch.py"))
_LARGEST_LOG: Final = 20 * 1024 * 1024
_LOG_TAIL: Final = 8192
_LONGEST_LINE: Final = 200
_WARNINGS: Final = ("warning", "error", "critical")
_ERROR_PREFIX: Final = "mnemesh: "


async def start_child(*arguments: str, **options: Any) -> asyncio.subprocess.Process:
    """Starts a Python interpreter that ends when this process does. `options` are those of `subprocess.Popen`."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", _LAUNCH, str(os.getpid())), *arguments, **options
    )


class ServiceProcess:
    """The process of one service, or of several. It writes to its log only, and ends when this process does."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        services: Sequence[str] = (),
    ) -> None:
        """Describes the process without starting it.

        Args:
            name: the name of the process, which is that of its service if there is one.
            arguments: the arguments of the Python interpreter.
            environment: the whole environment of the process.
            log: the file to which its output is appended.
            services: the names of its services if there are several.
        """
        self.name = name
        self.services = tuple(services) or (name,)
        self.log = log
        self._arguments = arguments
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0
        self._ready = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The id of the running process, or None if it is not running."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Starts the process, after rotating a log that is too large."""
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > _LARGEST_LOG:
            self.log.replace(self.log.with_suffix(".log.1"))
        self._ready = asyncio.Event()
        reader, writer = os.pipe()
        self._watch(reader, self._ready)
        with self.log.open("ab") as output:
            self._log_start = output.tell()
            starting = asyncio.ensure_future(
                start_child(
                    *self._arguments,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**self._environment, READY_VARIABLE: str(writer)},
                    pass_fds=(writer,),
                    start_new_session=True,  # the supervisor decides what Ctrl-C in its terminal does
                )
            )
            try:
                self._process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # The process may exist already. Keep it, so that `stop` and `kill` reach it.
                self._process = await starting
                raise
            finally:
                os.close(writer)

    async def wait_until_ready(self) -> None:
        """Waits until all services of the process serve. Does not end if the process exits before."""
        await self._ready.wait()

    def _watch(self, reader: int, ready: asyncio.Event) -> None:
        """Sets an event when the process writes to its end of a pipe, which closes when the process exits."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            loop.remove_reader(reader)
            if os.read(reader, 1):
                ready.set()
            os.close(reader)

        loop.add_reader(reader, read)

    async def wait(self) -> int:
        """Waits for the process to exit. Returns its exit code, or the negative number of the signal that killed it."""
        assert self._process is not None, "a service is started before it is waited for"  # noqa: S101
        return await self._process.wait()

    async def stop(self, timeout_seconds: float) -> bool:
        """Sends SIGTERM, and SIGKILL after the timeout. Returns whether the process exited before the timeout."""
        if self._process is None or self._process.returncode is not None:
            return True
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), timeout_seconds)
        except TimeoutError:
            self.kill()
            await self._process.wait()
            return False
        return True

    def kill(self) -> None:
        """Sends SIGKILL if the process is running."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def startup_error(self) -> str | None:
        """Returns the last error line that the process printed since it was started, or None if there is none."""
        errors = [line.removeprefix(_ERROR_PREFIX) for line in self._last_lines() if line.startswith(_ERROR_PREFIX)]
        return errors[-1] if errors else None

    def last_text(self) -> str:
        """Returns the last line that is not an entry of the log, such as the end of a traceback; "" without one."""
        lines = [line.strip() for line in self._last_lines() if line.strip() and not line.startswith("{")]
        return lines[-1][:_LONGEST_LINE] if lines else ""

    def last_warning(self) -> str:
        """Returns the last warning or error that the process logged since it was started; "" if there is none."""
        for line in reversed(self._last_lines()):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and entry.get("level") in _WARNINGS:
                details = (str(entry[key]) for key in ("error", "problem", "reason") if entry.get(key))
                return ": ".join((str(entry.get("event")), *details))[:_LONGEST_LINE]
        return ""

    def _last_lines(self) -> list[str]:
        if not self.log.exists():
            return []
        with self.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - _LOG_TAIL))
            return log.read().decode(errors="replace").splitlines()
