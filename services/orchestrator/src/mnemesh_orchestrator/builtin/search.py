"""The tools of recall and archival memory: searches, whose results the model reads as JSON, and insertion."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from mnemesh_kit.clock import Clock
from mnemesh_types.messages import ReasoningPart

from mnemesh_orchestrator.builtin.call import BuiltinCall
from mnemesh_orchestrator.model.archival import PassageHit
from mnemesh_orchestrator.model.context_window import MessageHit
from mnemesh_orchestrator.ports.archival import ArchivalPort
from mnemesh_orchestrator.ports.recall import RecallPort

_CONVERSATION_LIMIT: Final = 5
_ARCHIVAL_LIMIT: Final = 10


async def conversation_search(recall: RecallPort, clock: Clock, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs conversation_search."""
    hits = await recall.search(
        call.agent_id,
        arguments["query"],
        roles=arguments.get("roles", ()),
        limit=arguments.get("limit", _CONVERSATION_LIMIT),
        start_date=arguments.get("start_date"),
        end_date=arguments.get("end_date"),
        time_zone=call.time_zone,
    )
    zone = ZoneInfo(call.time_zone)
    results = [message_result(hit, zone, clock.now()) for hit in hits]
    message = f"Showing {len(results)} results:" if results else "No results found."
    return json.dumps({"message": message, "results": results}, ensure_ascii=False)


async def archival_search(archival: ArchivalPort, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
    """Runs archival_memory_search. A blank query finds nothing; the service would list the latest passages."""
    if not arguments["query"].strip():
        return "[]"
    hits = await archival.search(
        call.agent_id,
        arguments["query"],
        tags=arguments.get("tags", ()),
        match_all_tags=arguments.get("tag_match_mode") == "all",
        limit=arguments.get("top_k", _ARCHIVAL_LIMIT),
        start_date=arguments.get("start_datetime"),
        end_date=arguments.get("end_datetime"),
        time_zone=call.time_zone,
    )
    zone = ZoneInfo(call.time_zone)
    return json.dumps([passage_result(hit, zone) for hit in hits], ensure_ascii=False)


async def archival_insert(archival: ArchivalPort, call: BuiltinCall, arguments: Mapping[str, Any]) -> None:
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


def message_result(hit: MessageHit, zone: ZoneInfo, now: datetime) -> dict[str, Any]:
    """Returns a found message as the model reads it."""
    created_at = hit.message.created_at
    thinking = "\n".join(part.text for part in hit.message.content if isinstance(part, ReasoningPart))
    return {
        "timestamp": created_at.astimezone(zone).isoformat(timespec="seconds"),
        "time_ago": time_ago(created_at, now),
        "role": hit.message.role.value,
        "relevance": {**_ranks(hit), "search_mode": hit.mode},
        **({"thinking": thinking} if thinking else {}),
        "content": hit.text,
    }


def passage_result(hit: PassageHit, zone: ZoneInfo) -> dict[str, Any]:
    """Returns a found passage as the model reads it."""
    return {
        "timestamp": hit.created_at.astimezone(zone).isoformat(timespec="seconds"),
        "content": hit.text,
        "tags": list(hit.tags),
        "relevance": _ranks(hit),
    }


def _ranks(hit: MessageHit | PassageHit) -> dict[str, Any]:
    ranks = {"rrf_score": hit.score, "vector_rank": hit.vector_rank, "fts_rank": hit.text_rank}
    return {name: value for name, value in ranks.items() if value is not None}
