"""The tools of recall, episodic and archival memory, also those of voice agents. The model reads results as JSON."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from mnemesh_kit.ids import is_id
from mnemesh_kit.time import Clock
from mnemesh_types.blocks import RethinkEdit
from mnemesh_types.messages import Message, ReasoningPart, ToolCall, text_of
from mnemesh_types.recall import MemorySource

from mnemesh_orchestrator.builtin.arguments import ParseFailure, parse
from mnemesh_orchestrator.builtin.call import BuiltinCall, Refused
from mnemesh_orchestrator.builtin.core_memory import apply_edit
from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS
from mnemesh_orchestrator.clients.archival import ArchivalClient
from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.clients.recall import EpisodesClient, RecallClient
from mnemesh_orchestrator.model.conversations import MessageHit, NamedTime
from mnemesh_orchestrator.model.episodes import Episode, Fact, MemoryHits, MemoryScope, PassageHit

SEND_MESSAGE: Final = BUILTIN_SCHEMAS["send_message"]
_CONVERSATION_LIMIT: Final = 5
_ARCHIVAL_LIMIT: Final = 10
_SURROUNDING_CHARACTERS: Final = 500
"""The length of the part of a message or passage around a result that the model sees."""

_EPISODIC_LIMIT: Final = 5
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


async def conversation_search(
    recall: RecallClient, clock: Clock, call: BuiltinCall, arguments: Mapping[str, Any]
) -> str:
    """Runs conversation_search."""
    now, zone = clock.now(), ZoneInfo(call.time_zone)
    found = await recall.search(
        call.agent_id,
        arguments["query"],
        further_queries=arguments.get("queries", ()),
        roles=arguments.get("roles", ()),
        speakers=arguments.get("speakers", ()),
        limit=arguments.get("limit", _CONVERSATION_LIMIT),
        surrounding=arguments.get("surrounding", 0),
        start_date=arguments.get("start_date"),
        end_date=arguments.get("end_date"),
        time_zone=call.time_zone,
        now=now,
    )
    results = [message_result(hit, zone, now, call.conversation_id) for hit in found.hits]
    answer: dict[str, Any] = {
        "message": f"Showing {len(results)} results:" if results else "No results found.",
        **({"times": [_time_result(each, zone) for each in found.times]} if found.times else {}),
        "results": results,
    }
    return json.dumps(answer, ensure_ascii=False)


async def archival_search(
    archival: ArchivalClient, clock: Clock, call: BuiltinCall, arguments: Mapping[str, Any]
) -> str:
    """Runs archival_memory_search. Blank queries find nothing; the service would list the latest passages."""
    queries = [query for query in (arguments["query"], *arguments.get("queries", ())) if query.strip()]
    if not queries:
        return "[]"
    now, zone = clock.now(), ZoneInfo(call.time_zone)
    hits = await archival.search(
        call.agent_id,
        queries[0],
        further_queries=queries[1:],
        tags=arguments.get("tags", ()),
        match_all_tags=arguments.get("tag_match_mode") == "all",
        limit=arguments.get("top_k", _ARCHIVAL_LIMIT),
        surrounding=arguments.get("surrounding", 0),
        start_date=arguments.get("start_datetime"),
        end_date=arguments.get("end_datetime"),
        time_zone=call.time_zone,
        now=now,
    )
    return json.dumps([passage_result(hit, zone, now) for hit in hits], ensure_ascii=False)


async def archival_insert(archival: ArchivalClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> None:
    """Runs archival_memory_insert."""
    await archival.insert(
        call.effect(0), call.agent_id, arguments["content"], arguments.get("tags", ()), embedder=call.embedder
    )


def time_ago(moment: datetime, now: datetime) -> str:
    """Returns the time since an instant in the largest whole unit of seconds, minutes, hours or days."""
    seconds = max(0, int((now - moment).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


def message_result(
    hit: MessageHit, zone: ZoneInfo, now: datetime, conversation_id: str | None = None
) -> dict[str, Any]:
    """Returns a found message as the model reads it: who said what and when, and the question before it.

    Args:
        zone: the agent's time zone.
        now: the time from which `time_ago` counts.
        conversation_id: the conversation that the model is in. A message of another one names its conversation.
    """
    message = hit.message
    thinking = "\n".join(part.text for part in message.content if isinstance(part, ReasoningPart))
    is_elsewhere = message.conversation_id is not None and message.conversation_id != conversation_id
    return {
        "timestamp": message.created_at.astimezone(zone).isoformat(timespec="seconds"),
        "time_ago": time_ago(message.created_at, now),
        **_who(message),
        **({"conversation_id": message.conversation_id} if is_elsewhere else {}),
        "relevance": {**_ranks(hit), "search_mode": hit.mode},
        **({"thinking": thinking} if thinking else {}),
        **({"question": _said(hit.question)} if hit.question is not None and not hit.before else {}),
        **({"before": [_said(each) for each in hit.before]} if hit.before else {}),
        "content": hit.text,
        **({"after": [_said(each) for each in hit.after]} if hit.after else {}),
    }


def passage_result(hit: PassageHit, zone: ZoneInfo, now: datetime) -> dict[str, Any]:
    """Returns a found passage as the model reads it."""
    return {
        "timestamp": hit.created_at.astimezone(zone).isoformat(timespec="seconds"),
        "time_ago": time_ago(hit.created_at, now),
        **({"before": [_shortened(text) for text in hit.before]} if hit.before else {}),
        "content": hit.text,
        **({"after": [_shortened(text) for text in hit.after]} if hit.after else {}),
        "tags": list(hit.tags),
        "relevance": _ranks(hit),
    }


def _who(message: Message) -> dict[str, str]:
    return {"role": message.role.value, **({"speaker": message.name} if message.name else {})}


def _said(message: Message) -> dict[str, str]:
    """Returns a message around a result."""
    texts = [text_of(message.content), *(_sent(call) for call in message.tool_calls)]
    return {**_who(message), "content": _shortened("\n".join(filter(None, texts)))}


def _sent(call: ToolCall) -> str:
    """Returns the text that a call of send_message sent; "" for another call."""
    if call.name != SEND_MESSAGE.name:
        return ""
    arguments = parse(call.arguments, SEND_MESSAGE)
    text = None if isinstance(arguments, ParseFailure) else arguments.values.get("message")
    return text if isinstance(text, str) else ""


def _shortened(text: str) -> str:
    return text if len(text) <= _SURROUNDING_CHARACTERS else f"{text[:_SURROUNDING_CHARACTERS]}…"


def _time_result(time: NamedTime, zone: ZoneInfo) -> dict[str, str]:
    bounds = {"from": time.start, "until": time.end}
    local = {name: at.astimezone(zone).isoformat(timespec="minutes") for name, at in bounds.items() if at is not None}
    return {"expression": time.expression, **local}


def _ranks(hit: MessageHit | PassageHit) -> dict[str, Any]:
    ranks = {"rrf_score": hit.score, "vector_rank": hit.vector_rank, "fts_rank": hit.text_rank}
    return {name: value for name, value in ranks.items() if value is not None}


async def episodic_search(
    episodes: EpisodesClient, clock: Clock, call: BuiltinCall, arguments: Mapping[str, Any]
) -> str:
    """Runs episodic_memory_search in the memories that the call may read."""
    zone, now = ZoneInfo(call.time_zone), clock.now()
    at = _moment(arguments["held_at"], zone) if arguments.get("held_at") else None
    hits = await episodes.search(
        scopes_of(call),
        arguments["query"],
        limit=arguments.get("limit", _EPISODIC_LIMIT),
        held_at=at,
        asked_at=now if at is None else None,
        time_zone=call.time_zone,
    )
    counted = f"{len(hits.facts)} facts and {len(hits.episodes)} episodes"
    return json.dumps(
        {
            "message": f"Showing {counted}{_restriction(hits)}:"
            if hits.facts or hits.episodes
            else "No results found.",
            "facts": [_fact_result(fact, zone, now) for fact in hits.facts],
            "episodes": [_episode_result(episode, zone, now) for episode in hits.episodes],
        },
        ensure_ascii=False,
    )


async def episodic_correct(episodes: EpisodesClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs episodic_memory_correct."""
    fact_id, text, reason = _fact_id(arguments), arguments["statement"].strip(), arguments.get("reason", "")
    if not text:
        raise Refused("statement must not be empty. State what holds instead, or use episodic_memory_forget.")
    fact = await episodes.correct(call.effect(0), scopes_of(call), fact_id, text, reason, _source(call))
    return f"Corrected. The fact is now {fact.id}: {fact.text}"


async def episodic_forget(episodes: EpisodesClient, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs episodic_memory_forget."""
    fact_id, reason = _fact_id(arguments), arguments.get("reason", "")
    fact = await episodes.forget(call.effect(0), scopes_of(call), fact_id, reason, _source(call))
    return f"Forgotten. This no longer counts: {fact.text}"


def _fact_id(arguments: Mapping[str, Any]) -> str:
    fact_id: str = arguments["fact_id"].strip()
    if not is_id(fact_id, "fact"):
        raise Refused(f"{fact_id[:100]!r} is not an id of a fact. Use an id that episodic_memory_search returned.")
    return fact_id


def _source(call: BuiltinCall) -> MemorySource:
    """Returns the user messages of the turn as evidence. They may be stored only with the step of the call."""
    run = call.run
    if run is None:
        return MemorySource(agent_id=call.agent_id)
    return MemorySource(
        agent_id=call.agent_id, conversation_id=run.conversation_id, run_id=run.id, message_ids=call.user_message_ids
    )


def _restriction(hits: MemoryHits) -> str:
    if hits.times is None:
        return ""
    return f" known {hits.times!r}" if hits.is_knowledge else f", those that held {hits.times!r} first"


def scopes_of(call: BuiltinCall) -> tuple[MemoryScope, ...]:
    """Returns the scopes of memories that a call may read."""
    return (MemoryScope(call.agent_id),) if call.memory is None else call.memory.found


def _fact_result(fact: Fact, zone: ZoneInfo, now: datetime) -> dict[str, Any]:
    """Returns a fact as the model reads it. `time_ago` is the time since it was learned."""
    times = {"since": fact.valid_from, "until": fact.invalid_at, "learned": fact.created_at}
    return {
        "id": fact.id,
        "fact": fact.text,
        **_local_times(times, zone),
        "time_ago": time_ago(fact.created_at, now),
        **({"tags": list(fact.tags)} if fact.tags else {}),
    }


def _episode_result(episode: Episode, zone: ZoneInfo, now: datetime) -> dict[str, Any]:
    times = {"from": episode.started_at, "to": episode.ended_at}
    ago = time_ago(episode.ended_at or episode.created_at, now)
    tags = {"tags": list(episode.tags)} if episode.tags else {}
    return {"summary": episode.summary, **_local_times(times, zone), "time_ago": ago, **tags}


def _local_times(times: Mapping[str, datetime | None], zone: ZoneInfo) -> dict[str, str]:
    return {name: at.astimezone(zone).isoformat(timespec="seconds") for name, at in times.items() if at is not None}


def _moment(text: str, zone: ZoneInfo) -> datetime:
    """Returns a time in the agent's zone unless it has an offset. A bare date is the end of that day."""
    try:
        moment = datetime.fromisoformat(text.strip())
        if _DAY.fullmatch(text.strip()):
            moment = datetime.combine(moment.date() + timedelta(days=1), time()) - timedelta(microseconds=1)
        return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Refused(
            f"held_at {text[:100]!r} is not a time. Use ISO 8601 format (YYYY-MM-DD or YYYY-MM-DDTHH:MM)."
        ) from error


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
    start, end = _stated_moment(now, oldest), _stated_moment(now, newest)
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


def _stated_moment(now: datetime, minutes_ago: int | None) -> str | None:
    return None if minutes_ago is None else (now - timedelta(minutes=minutes_ago)).isoformat()
