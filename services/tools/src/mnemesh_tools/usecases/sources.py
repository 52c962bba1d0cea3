"""Reads the sources of tools away from the event loop, in bounded time."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from mnemesh_tools.schema import SourceFacts, read_in_process, read_source

# A source of this length takes about as long as the switch to a thread, whatever it contains.
_MAX_CHARS_AT_ONCE: Final = 2_000
# A source of this length takes at most some hundredths of a second.
_MAX_CHARS_IN_THREAD: Final = 20_000
_PROCESSES: Final = 2
_PROCESS_SECONDS: Final = 10.0
_CACHED: Final = 500


class SourceReader:
    """Reads all but small sources in a thread, and large ones in a process with a time limit. Remembers the latest."""

    def __init__(self) -> None:
        # A thread for each process: a caller who is cancelled does not make room for another process.
        self._processes = ThreadPoolExecutor(_PROCESSES, thread_name_prefix="source-reader")
        self._known: OrderedDict[tuple[bytes, str | None], SourceFacts] = OrderedDict()

    async def read(self, source: str, field: str, name: str | None = None) -> SourceFacts:
        """Returns the facts about the last function of `source`, or about the function `name`.

        Args:
            source: Python source.
            field: The request's field, for errors.
            name: A function at the top level of the source.

        Raises:
            ToolSourceInvalid: The source is not valid Python, has no such function, or takes too long to be parsed.
        """
        key = hashlib.sha256(source.encode("utf-8", "surrogatepass")).digest(), name
        facts = self._known.pop(key, None)
        if facts is None:
            if len(source) <= _MAX_CHARS_AT_ONCE:
                facts = read_source(source, field, name=name)
            elif len(source) <= _MAX_CHARS_IN_THREAD:
                facts = await asyncio.to_thread(read_source, source, field, name=name)
            else:
                loop = asyncio.get_running_loop()
                facts = await loop.run_in_executor(
                    self._processes, read_in_process, source, field, name, _PROCESS_SECONDS
                )
        self._known[key] = facts
        if len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return facts
