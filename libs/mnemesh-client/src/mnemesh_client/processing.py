"""Waiting for files to be processed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Final

from mnemesh.files.v1 import files_pb2
from mnemesh_kit.errors import DeadlineExceeded, MnemeshError
from mnemesh_kit.retries import Backoff

from mnemesh_client.patience import Patience
from mnemesh_client.transport import sleep

_ENDED: Final = (files_pb2.FILE_STATUS_COMPLETED, files_pb2.FILE_STATUS_ERROR)
_POLLS: Final = Backoff(first=0.1, maximum=2.0, jitter=0.0)
_BATCH: Final = 1000


async def wait_all(
    list_files: Callable[..., AsyncIterator[files_pb2.File]],
    file_ids: Iterable[str],
    patience: float,
    timeout: float | None,  # noqa: ASYNC109  (seconds of the whole wait, as in `asyncio.wait_for`)
    on_progress: Callable[[files_pb2.File], None] | None,
) -> AsyncIterator[files_pb2.File]:
    """Yields files as they are processed; see `FilesClient.wait_all`."""
    waiting, left = dict.fromkeys(file_ids), Patience(patience)
    end = None if timeout is None else time.monotonic() + timeout
    for delay in _POLLS.delays():
        for batch in _batches(list(waiting)):
            try:
                known = {file.id: file async for file in list_files(file_ids=batch)}
            except MnemeshError as error:
                await left.wait(error)
                break
            left.progressed()
            for file_id in batch:
                file = known.get(file_id)
                if file is not None and on_progress is not None:
                    on_progress(file)
                if file is None or file.status in _ENDED:
                    del waiting[file_id]
                if file is not None and file.status in _ENDED:
                    yield file
        if not waiting:
            return
        if end is not None and time.monotonic() + delay > end:
            raise DeadlineExceeded(f"{len(waiting)} files are still being processed. Wait longer.")
        await sleep(delay)


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _BATCH):
        yield ids[start : start + _BATCH]
