"""The tools of voice agents: a search of both memories at once, and the storage of a transcript."""

import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from mnemesh_kit.clock import Clock

from mnemesh_orchestrator.builtin.call import BuiltinCall, Refused
from mnemesh_orchestrator.builtin.core_memory import edited
from mnemesh_orchestrator.builtin.search import shown_message, shown_passage
from mnemesh_orchestrator.model.archival import PassageHit
from mnemesh_orchestrator.model.core_memory import Rethink
from mnemesh_orchestrator.ports.archival import ArchivalPort
from mnemesh_orchestrator.ports.blocks import CoreMemoryPort
from mnemesh_orchestrator.ports.recall import RecallPort

USER_BLOCK: Final = "human"
_LIMIT: Final = 5
_MARK: Final = r"(?:\((?:Older|Newer)\)\s*)?"
_HEADING: Final = re.compile(r"^\s*\((?:Older|Newer)\)")
_LINE: Final = re.compile(rf"^\s*{_MARK}(\d{{1,9}})[.:)]\s*{_MARK}(.*)$")


async def search_memory(
    recall: RecallPort, archival: ArchivalPort, clock: Clock, call: BuiltinCall, given: Mapping[str, Any]
) -> str:
    """Runs search_memory: searches the archive for the last user message, and the conversation for each query."""
    now, zone = clock.now(), ZoneInfo(call.time_zone)
    oldest, newest = given.get("start_minutes_ago"), given.get("end_minutes_ago")
    if oldest is not None and newest is not None and newest > oldest:
        raise Refused("end_minutes_ago must not be longer ago than start_minutes_ago.")
    start, end = _moment(now, oldest), _moment(now, newest)
    passages: tuple[PassageHit, ...] = ()
    if call.heard.strip():
        passages = await archival.search(
            call.agent_id, call.heard, limit=_LIMIT, start_date=start, end_date=end, time_zone=call.time_zone
        )
    said = {}
    for query in dict.fromkeys(given.get("convo_keyword_queries", ())):
        hits = await recall.search(
            call.agent_id, query, limit=_LIMIT, start_date=start, end_date=end, time_zone=call.time_zone
        )
        said[query] = [shown_message(hit, zone, now) for hit in hits]
    found = {
        "archival_search_results": [shown_passage(hit, zone) for hit in passages],
        "convo_keyword_search_results": said,
    }
    return json.dumps(found, ensure_ascii=False)


async def store_memories(archival: ArchivalPort, call: BuiltinCall, given: Mapping[str, Any]) -> str:
    """Runs store_memories: stores chunks of the agent's transcript as passages, with the reason why each matters."""
    lines = transcript(call.heard)
    texts = [_memory(lines, chunk, place) for place, chunk in enumerate(given["chunks"])]
    for place, text in enumerate(texts):
        await archival.insert(call.effect(place), call.agent_id, text)
    return f"Stored {len(texts)} {'memory' if len(texts) == 1 else 'memories'}."


async def rethink_user_memory(blocks: CoreMemoryPort, call: BuiltinCall, given: Mapping[str, Any]) -> str:
    """Runs rethink_user_memory: replaces the block about the user."""
    return await edited(blocks, call, USER_BLOCK, Rethink(given["new_memory"], call.base_revision(USER_BLOCK)))


def transcript(text: str) -> Mapping[int, str]:
    """Returns the lines of a transcript by their index: `0.

    user: …`, marked (Older) or (Newer), or listed under such a mark.

    A line without an index continues the line before it.
    """
    lines: dict[int, str] = {}
    last: int | None = None
    for line in text.splitlines():
        if (found := _LINE.match(line)) is not None:
            last = int(found[1])
            lines[last] = found[2]
        elif _HEADING.match(line):
            last = None
        elif last is not None and line.strip():
            lines[last] += f"\n{line}"
    return lines


def _memory(lines: Mapping[int, str], chunk: Mapping[str, Any], place: int) -> str:
    first, last = chunk["start_index"], chunk["end_index"]
    if not lines:
        raise Refused("You were given no transcript with numbered lines, so that there is nothing to store.")
    if first > last or first not in lines or last not in lines:
        raise Refused(
            f"chunks[{place}] goes from line {first} to line {last}; the transcript has the lines {min(lines)} to "
            f"{max(lines)}. Nothing was stored."
        )
    said = "\n".join(text for index, text in lines.items() if first <= index <= last)
    return f"{chunk['context']}\n\n{said}"


def _moment(now: datetime, minutes_ago: int | None) -> str | None:
    return None if minutes_ago is None else (now - timedelta(minutes=minutes_ago)).isoformat()
