"""The search of facts and episodes: the memory of turns that left the context window."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from mnemesh_kit.clock import Clock
from mnemesh_kit.ids import is_id

from mnemesh_orchestrator.builtin.call import BuiltinCall, Refused
from mnemesh_orchestrator.builtin.search import time_ago
from mnemesh_orchestrator.model.episodes import Episode, Fact, FactSource, MemoryHits, MemoryScope
from mnemesh_orchestrator.ports.episodes import EpisodesPort

_LIMIT: Final = 5
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


async def search(episodes: EpisodesPort, clock: Clock, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs episodic_memory_search in the memories that the call may read."""
    zone, now = ZoneInfo(call.time_zone), clock.now()
    at = _moment(arguments["held_at"], zone) if arguments.get("held_at") else None
    hits = await episodes.search(
        scopes_of(call),
        arguments["query"],
        limit=arguments.get("limit", _LIMIT),
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


async def correct(episodes: EpisodesPort, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs episodic_memory_correct."""
    fact_id, text, reason = _fact_id(arguments), arguments["statement"].strip(), arguments.get("reason", "")
    if not text:
        raise Refused("statement must not be empty. State what holds instead, or use episodic_memory_forget.")
    fact = await episodes.correct(call.effect(0), scopes_of(call), fact_id, text, reason, _source(call))
    return f"Corrected. The fact is now {fact.id}: {fact.text}"


async def forget(episodes: EpisodesPort, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs episodic_memory_forget."""
    fact_id, reason = _fact_id(arguments), arguments.get("reason", "")
    fact = await episodes.forget(call.effect(0), scopes_of(call), fact_id, reason, _source(call))
    return f"Forgotten. This no longer counts: {fact.text}"


def _fact_id(arguments: Mapping[str, Any]) -> str:
    fact_id: str = arguments["fact_id"].strip()
    if not is_id(fact_id, "fact"):
        raise Refused(f"{fact_id[:100]!r} is no id of a fact. Use an id that episodic_memory_search returned.")
    return fact_id


def _source(call: BuiltinCall) -> FactSource:
    """Returns the user messages of the turn as evidence. They may be stored only with the step of the call."""
    run = call.run
    if run is None:
        return FactSource(call.agent_id)
    return FactSource(call.agent_id, run.conversation_id, run.id, call.user_message_ids)


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
            f"held_at {text[:100]!r} is no time. Use ISO 8601 format (YYYY-MM-DD or YYYY-MM-DDTHH:MM)."
        ) from error
