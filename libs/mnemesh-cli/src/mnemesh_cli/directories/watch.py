"""A folder that follows a directory until it is stopped. Requires the extra `watch`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from mnemesh_cli.directories.ignore import IGNORE_FILES
from mnemesh_cli.directories.sync import FolderSync, Pass
from mnemesh_client.patience import is_broken_connection
from mnemesh_kit.errors import FailedPrecondition, MnemeshError
from watchfiles import awatch
from watchfiles.main import FileChange

_GROUPING_MS: Final = 400
_TICK_MS: Final = 250
_REST_FACTOR: Final = 5.0
"""The time between passes, in durations of a comparison, while files are being written."""
_CHECK_SECONDS: Final = 1.0
RECONNECT_SECONDS: Final = 5.0


class Watch:
    """Repeats passes of a `FolderSync`: after changes, while files are being written, and now and then.

    Args:
        sync: the passes.
        on_pass: receives the result of each pass.
        on_outage: receives the error of a pass that the mesh did not answer.
        rescan_seconds: the time after which directory and folder are compared in any case, because a system may not
            report every change, and others may change the folder.
        reconnect_seconds: the time between passes while the mesh does not answer.
        polls: whether to compare the directory itself periodically, for file systems that report no changes.
    """

    def __init__(
        self,
        sync: FolderSync,
        *,
        on_pass: Callable[[Pass], None],
        on_outage: Callable[[MnemeshError], None],
        rescan_seconds: float = 60.0,
        reconnect_seconds: float = RECONNECT_SECONDS,
        polls: bool = False,
    ) -> None:
        self._sync = sync
        self._on_pass = on_pass
        self._on_outage = on_outage
        self._rescan_seconds = rescan_seconds
        self._reconnect_seconds = reconnect_seconds
        self._polls = polls

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until `stop` is set. Uploads that are running then are cancelled.

        Raises:
            FailedPrecondition: the directory is gone, or the system cannot report its changes.
            NotFound: the folder was deleted.
            MnemeshError: the server refused the request.
        """
        await _until(stop, self._follow(stop))

    async def run_once(self, stop: asyncio.Event, *, waits: bool = False) -> None:
        """Makes the folder equal to the directory, and with `waits` waits until the files are processed.

        Raises:
            MnemeshError: as `run`, and if the mesh does not answer.
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
        root = self._sync.root
        next_pass, is_pending = 0.0, True
        next_listing = time.monotonic() + self._rescan_seconds
        try:
            # The first turn of the loop comes after the watcher has been installed, so that no change is missed.
            async with aclosing(self._events(root, stop)) as turns:
                async for events in turns:
                    now = time.monotonic()
                    is_pending = is_pending or any(self._is_relevant(root, path) for _, path in events)
                    if now >= next_listing:
                        self._sync.forget()
                        next_listing, is_pending = now + self._rescan_seconds, True
                    if (is_pending or self._sync.is_processing) and now >= next_pass:
                        is_pending, rest = await self._pass(compares=is_pending)
                        next_pass = time.monotonic() + rest
        except OSError as error:
            raise FailedPrecondition(
                f"{self._sync.root} cannot be watched: {error}. Use polling, or raise fs.inotify.max_user_watches."
            ) from error

    def _events(self, root: Path, stop: asyncio.Event) -> AsyncGenerator[set[FileChange], None]:
        """Yields the changes of the directory, and an empty set when there was none for a while."""
        return awatch(
            root,
            watch_filter=None,
            debounce=_GROUPING_MS,
            stop_event=stop,
            rust_timeout=_TICK_MS,
            yield_on_timeout=True,
            force_polling=self._polls or None,
            ignore_permission_denied=True,
        )

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
