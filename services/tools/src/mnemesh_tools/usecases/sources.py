"""Reads the sources of tools away from the event loop, in bounded time."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from mnemesh_kit.principal import Principal

from mnemesh_tools.errors import ToolSourceInvalid
from mnemesh_tools.model.definitions import Source
from mnemesh_tools.model.tools import SourceType
from mnemesh_tools.schema import MAX_SOURCE_CHARS, SourceFacts, read_in_process, read_source, read_typescript
from mnemesh_tools.usecases.slots import FairSlots

# A source of this length takes about as long as the switch to a thread, whatever it contains.
_MAX_CHARS_AT_ONCE: Final = 2_000
# A source of this length takes at most some hundredths of a second.
_MAX_CHARS_IN_THREAD: Final = 20_000
PROCESSES: Final = 2
"""The number of large sources that are read at the same time."""
_PROCESS_SECONDS: Final = 10.0
_WAIT_SECONDS: Final = 20.0
_CACHED: Final = 500


class SourceReader:
    """Reads all but small sources in a thread, and large ones in a process with a time limit. Remembers the latest."""

    def __init__(self, per_organization: int = PROCESSES) -> None:
        """Creates an empty memory.

        Args:
            per_organization: The number of large sources of one organization that are read at the same time.
        """
        self._slots = FairSlots(PROCESSES, per_organization, _WAIT_SECONDS, "large sources to read")
        self._processes = ThreadPoolExecutor(PROCESSES, thread_name_prefix="source-reader")
        self._known: OrderedDict[tuple[str, SourceType, bytes, str | None], SourceFacts] = OrderedDict()

    async def read(self, caller: Principal, source: Source, field: str, name: str | None = None) -> SourceFacts:
        """Returns the facts about the last function of `source`, or about the function `name`.

        Args:
            caller: Whose source it is.
            source: The source.
            field: The request's field, for errors.
            name: A function at the top level of the source.

        Raises:
            ToolSourceInvalid: The source is not valid, has no such function, or takes too long to be parsed.
            ToolSlotsBusy: Too many large sources are read.
        """
        source_type, text = source
        if len(text) > MAX_SOURCE_CHARS:
            raise ToolSourceInvalid(f"The source must be at most {MAX_SOURCE_CHARS:,} characters.", field=field)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        key = caller.organization_id, source_type, digest, name
        facts = self._known.pop(key, None)
        if facts is None:
            read = read_source if source_type is SourceType.PYTHON else read_typescript
            if len(text) <= _MAX_CHARS_AT_ONCE:
                facts = read(text, field, name=name)
            elif len(text) <= _MAX_CHARS_IN_THREAD:
                facts = await asyncio.to_thread(read, text, field, name=name)
            else:
                facts = await self._read_large(caller, source, field, name)
        self._known[key] = facts
        if len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return facts

    async def _read_large(self, caller: Principal, source: Source, field: str, name: str | None) -> SourceFacts:
        async with self._slots.hold(caller.organization_id):
            loop = asyncio.get_running_loop()
            source_type, text = source
            arguments = (source_type.value, text, field, name, _PROCESS_SECONDS)
            reading = loop.run_in_executor(self._processes, read_in_process, *arguments)
            try:
                return await asyncio.shield(reading)
            finally:
                await asyncio.wait([reading])  # a caller who is cancelled keeps the slot while the process runs
