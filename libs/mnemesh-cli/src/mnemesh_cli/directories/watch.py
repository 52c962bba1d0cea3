"""A folder that follows a directory until it is stopped. Requires the extra `watch`."""

import asyncio
import errno
import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from mnemesh_cli.directories.sync import IGNORE_FILES, DirectoryUnreadable, FolderSync, Pass
from mnemesh_client.patience import is_broken_connection
from mnemesh_kit.errors import MnemeshError
from watchfiles import awatch
from watchfiles.main import FileChange

_GROUPING_MS: Final = 400
_TICK_MS: Final = 250
_REST_FACTOR: Final = 5.0
"""The time between passes, in durations of a comparison, while files are being written."""
_CHECK_SECONDS: Final = 1.0
_LIMITS: Final = {
    errno.ENOSPC: "fs.inotify.max_user_watches",
    errno.EMFILE: "fs.inotify.max_user_instances and the limit of open files",
}
RECONNECT_SECONDS: Final = 5.0


class Watch:
    """Repeats passes of a `FolderSync`: after changes, while files are being written, and now and then.

    Args:
        sync: the passes.
        on_pass: receives the result of each pass.
        on_outage: receives the error of a pass that the mesh did not answer.
        on_problem: receives what is wrong with the directory or with the reports of the system. The watch goes on.
        rescan_seconds: the time after which directory and folder are compared in any case, because a system may not
            report every change, and others may change the folder.
        reconnect_seconds: the time between passes while the mesh does not answer, or the directory cannot be read.
        unreported_seconds: the time after which a system that could not report changes is asked again.
        polls: whether to compare the directory itself periodically, for file systems that report no changes.
    """

    def __init__(
        self,
        sync: FolderSync,
        *,
        on_pass: Callable[[Pass], None],
        on_outage: Callable[[MnemeshError], None],
        on_problem: Callable[[str], None],
        rescan_seconds: float = 60.0,
        reconnect_seconds: float = RECONNECT_SECONDS,
        unreported_seconds: float = 30.0,
        polls: bool = False,
    ) -> None:
        self._sync = sync
        self._on_pass = on_pass
        self._on_outage = on_outage
        self._on_problem = on_problem
        self._unreported_seconds = unreported_seconds
        self._is_pending, self._next_pass, self._next_listing = True, 0.0, 0.0
        self._rescan_seconds = rescan_seconds
        self._reconnect_seconds = reconnect_seconds
        self._polls = polls

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until `stop` is set. Uploads that are running then are cancelled.

        Raises:
            NotFound: the folder was deleted.
            MnemeshError: the server refused the request.
        """
        await _until(stop, self._follow(stop))

    async def run_once(self, stop: asyncio.Event, *, waits: bool = False) -> None:
        """Makes the folder equal to the directory, and with `waits` waits until the files are processed.

        Raises:
            MnemeshError: as `run`, and if the mesh does not answer or the directory cannot be read.
        """
        await _until(stop, self._once(waits=waits))

    async def _once(self, *, waits: bool) -> None:
        while True:
            result = await self._sync.run()
            self._on_pass(result)
            if result.is_settled:
                break
            await asyncio.sleep(_TICK_MS / 1000)
        await self._sync.check_processing(waits=waits)

    async def _follow(self, stop: asyncio.Event) -> None:
        """Follows the reports of the system. While it gives none, compares the directory every few seconds."""
        self._next_listing = time.monotonic() + self._rescan_seconds
        while True:
            self._is_pending, started = True, False
            try:
                # The first turn of the loop comes after the watcher has been installed, so that no change is missed.
                async with aclosing(self._events(stop)) as turns:
                    directory = _identity(self._sync.root)
                    async for events in turns:
                        started = True
                        await self._turn(events)
                        if _identity(self._sync.root) != directory:
                            break  # the watcher follows a directory that is gone
            except MnemeshError:
                raise
            except Exception as error:  # watchers raise what systems report: limits, names, permissions, lost disks
                self._on_problem(f"the system does not report changes: {_cause(error)}; the directory is compared")
            if not started:
                await self._compare_without_reports()

    async def _compare_without_reports(self) -> None:
        """Compares until it is time to ask the system for reports again."""
        until = time.monotonic() + self._unreported_seconds
        while time.monotonic() < until:
            await self._turn(())
            await asyncio.sleep(max(_TICK_MS / 1000, self._next_pass - time.monotonic()))
            self._is_pending = True

    def _events(self, stop: asyncio.Event) -> AsyncGenerator[set[FileChange], None]:
        """Yields the changes of the directory, and an empty set when there was none for a while."""
        return awatch(
            self._sync.root,
            watch_filter=None,
            debounce=_GROUPING_MS,
            stop_event=stop,
            rust_timeout=_TICK_MS,
            yield_on_timeout=True,
            force_polling=self._polls or None,
            ignore_permission_denied=True,
        )

    async def _turn(self, events: Iterable[FileChange]) -> None:
        """Takes up reported changes, and runs a pass if one is due."""
        now = time.monotonic()
        self._is_pending = self._is_pending or any(self._is_relevant(self._sync.root, path) for _, path in events)
        if now >= self._next_listing:
            self._sync.forget()
            self._next_listing, self._is_pending = now + self._rescan_seconds, True
        if (self._is_pending or self._sync.is_processing) and now >= self._next_pass:
            self._is_pending, rest = await self._pass(compares=self._is_pending)
            self._next_pass = time.monotonic() + rest

    async def _pass(self, *, compares: bool) -> tuple[bool, float]:
        """Runs one pass, or only asks what is processed.

        Returns:
            Whether another pass must follow, and the seconds until then.
        """
        is_pending, rest = False, _CHECK_SECONDS
        try:
            if compares:
                result = await self._sync.run()
                self._on_pass(result)
                is_pending, rest = not result.is_settled, result.seconds * _REST_FACTOR
            await self._sync.check_processing()
        except DirectoryUnreadable as error:
            self._on_problem(f"{error.message.rstrip('.')}; nothing is deleted")
            return True, self._reconnect_seconds
        except MnemeshError as error:
            if not is_broken_connection(error):
                raise
            self._on_outage(error)
            return True, self._reconnect_seconds
        return is_pending, rest

    def _is_relevant(self, root: Path, path: str) -> bool:
        """Returns whether a change of a path can change the folder. Rules of ignore files are not considered."""
        relative = os.path.relpath(path, root)
        return Path(path).name in IGNORE_FILES or not self._sync.rules.ignores(relative)


def _identity(directory: Path) -> tuple[int, int] | None:
    """Returns what distinguishes a directory from another one of its path; None if there is none."""
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _cause(error: BaseException) -> str:
    """Returns the reason of an error of the watcher, which raises groups of one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, UnicodeError):
        return "a name is not UTF-8"
    if isinstance(error, OSError) and error.errno in _LIMITS:
        return f"{os.strerror(error.errno)} (see {_LIMITS[error.errno]})"
    return " ".join(str(error).split()) or type(error).__name__


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Runs work until it ends, or cancels it when `stop` is set."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
