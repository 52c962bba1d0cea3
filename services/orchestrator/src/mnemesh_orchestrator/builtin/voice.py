"""The tools of voice agents: a search of both memories at once, and the storage of a transcript."""

import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from mnemesh_kit.time import Clock
from mnemesh_types.blocks import RethinkEdit
from mnemesh_types.messages import text_of

from mnemesh_orchestrator.builtin.call import BuiltinCall, Refused
from mnemesh_orchestrator.builtin.core_memory import apply_edit
from mnemesh_orchestrator.builtin.search import message_result, passage_result
from mnemesh_orchestrator.clients.archival import ArchivalClient
from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.model.episodes import PassageHit

USER_BLOCK: Final = "human"
_LIMIT: Final = 5
_AGE_MARK: Final = r"(?:\((?:Older|Newer)\)\s*)?"
_HEADING: Final = re.compile(r"^\s*\((?:Older|Newer)\)")
_LINE: Final = re.compile(rf"^\s*{_AGE_MARK}(\d{{1,9}})[.:)]\s*{_AGE_MARK}(.*)$")


async def search_memory(
    recall: RecallClient, archival: ArchivalClient, clock: Clock, call: BuiltinCall, arguments: Mapping[str, Any]
) -> str:
    """Runs search_memory: searches the archive for the last user message, and the conversation for each query."""
    now, zone = clock.now(), ZoneInfo(call.time_zone)
    oldest, newest = arguments.get("start_minutes_ago"), arguments.get("end_minutes_ago")
    if oldest is not None and newest is not None and newest > oldest:
        raise Refused("end_minutes_ago must not be longer ago than start_minutes_ago.")
    start, end = _moment(now, oldest), _moment(now, newest)
    passages: tuple[PassageHit, ...] = ()
    if call.last_user_text.strip():
        passages = await archival.search(
            call.agent_id,
            call.last_user_text,
            limit=_LIMIT,
            start_date=start,
            end_date=end,
            time_zone=call.time_zone,
            now=now,
        )
    messages_by_query = {}
    for query in dict.fromkeys(arguments.get("convo_keyword_queries", ())):
        found = await recall.search(
            call.agent_id, query, limit=_LIMIT, start_date=start, end_date=end, time_zone=call.time_zone, now=now
        )
        messages_by_query[query] = [message_result(hit, zone, now, call.conversation_id) for hit in found.hits]
    results = {
        "archival_search_results": [passage_result(hit, zone, now) for hit in passages],
        "convo_keyword_search_results": messages_by_query,
    }
    return json.dumps(results, ensure_ascii=False)


async def store_memories(archival: ArchivalClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs store_memories: stores chunks of the agent's transcript as passages, with the reason why each matters.

    In a sleeptime run, the passages belong to the manager that the transcript is of, so that its search finds them.
    """
    words, owner_id = call.last_user_text, call.agent_id
    if call.run is not None and call.run.transcript is not None:
        words, owner_id = (
            "\n".join(text_of(message.content) for message in call.run.input),
            call.run.transcript.agent_id,
        )
    lines = transcript(words)
    texts = [_memory(lines, chunk, index) for index, chunk in enumerate(arguments["chunks"])]
    for index, text in enumerate(texts):
        await archival.insert(call.effect(index), owner_id, text, embedder=call.embedder)
    return f"Stored {len(texts)} {'memory' if len(texts) == 1 else 'memories'}."


async def rethink_user_memory(blocks: BlocksClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs rethink_user_memory: replaces the block about the user."""
    return await apply_edit(
        blocks, call, USER_BLOCK, RethinkEdit(arguments["new_memory"], call.base_revision(USER_BLOCK))
    )


def transcript(text: str) -> Mapping[int, str]:
    """Returns the lines of a transcript by their index.

    A line looks like `0. user: …`. It is marked (Older) or (Newer), or listed under such a heading. A line without an
    index continues the line before it.
    """
    lines: dict[int, str] = {}
    last_index: int | None = None
    for line in text.splitlines():
        if (match := _LINE.match(line)) is not None:
            last_index = int(match[1])
            lines[last_index] = match[2]
        elif _HEADING.match(line):
            last_index = None
        elif last_index is not None and line.strip():
            lines[last_index] += f"\n{line}"
    return lines


def _memory(lines: Mapping[int, str], chunk: Mapping[str, Any], index: int) -> str:
    first, last = chunk["start_index"], chunk["end_index"]
    if not lines:
        raise Refused("The last message has no transcript with numbered lines, so there is nothing to store.")
    if first > last or first not in lines or last not in lines:
        raise Refused(
            f"chunks[{index}] goes from line {first} to line {last}; the transcript has the lines {min(lines)} to "
            f"{max(lines)}. Nothing was stored."
        )
    text = "\n".join(text for index, text in lines.items() if first <= index <= last)
    return f"{chunk['context']}\n\n{text}"


def _moment(now: datetime, minutes_ago: int | None) -> str | None:
    return None if minutes_ago is None else (now - timedelta(minutes=minutes_ago)).isoformat()
