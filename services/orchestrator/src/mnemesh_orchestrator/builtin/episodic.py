"""The search of facts and episodes: the memory of turns that left the context window."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from mnemesh_orchestrator.builtin.call import BuiltinCall, Refused
from mnemesh_orchestrator.model.episodes import Episode, Fact, MemoryScope
from mnemesh_orchestrator.ports.episodes import EpisodesPort

_LIMIT: Final = 5
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


async def search(episodes: EpisodesPort, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs episodic_memory_search in the agent's own memories and in those of its shared scope."""
    zone = ZoneInfo(call.time_zone)
    at = _moment(arguments["held_at"], zone) if arguments.get("held_at") else None
    own = MemoryScope(call.agent_id)
    scopes = (own,) if call.memory_scope is None else (own, MemoryScope(call.agent_id, call.memory_scope))
    hits = await episodes.search(scopes, arguments["query"], limit=arguments.get("limit", _LIMIT), held_at=at)
    counted = f"{len(hits.facts)} facts and {len(hits.episodes)} episodes"
    return json.dumps(
        {
            "message": f"Showing {counted}:" if hits.facts or hits.episodes else "No results found.",
            "facts": [_fact_result(fact, zone) for fact in hits.facts],
            "episodes": [_episode_result(episode, zone) for episode in hits.episodes],
        },
        ensure_ascii=False,
    )


def _fact_result(fact: Fact, zone: ZoneInfo) -> dict[str, Any]:
    times = {"since": fact.valid_from, "until": fact.invalid_at, "learned": fact.created_at}
    return {"fact": fact.text, **_local_times(times, zone), **({"tags": list(fact.tags)} if fact.tags else {})}


def _episode_result(episode: Episode, zone: ZoneInfo) -> dict[str, Any]:
    times = {"from": episode.started_at, "to": episode.ended_at}
    tags = {"tags": list(episode.tags)} if episode.tags else {}
    return {"summary": episode.summary, **_local_times(times, zone), **tags}


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
