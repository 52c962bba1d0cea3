"""The memory that recall holds of an agent: as material of an extraction, and at the head of a window."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
from mnemesh_kit.errors import MnemeshError
from mnemesh_types.messages import Message, Role, TextPart

from mnemesh_orchestrator.compaction.planner import Cut, count_turns, split_turns
from mnemesh_orchestrator.compaction.port import CompactionRequest, Summary
from mnemesh_orchestrator.compaction.snapshot import EPISODES, join_notes, snapshot, split_notes
from mnemesh_orchestrator.compaction.transcript import SUMMARY_NOTE, summary_text
from mnemesh_orchestrator.model.episodes import Fact, MemoryBundle, MemoryScope
from mnemesh_orchestrator.ports.episodes import EpisodesPort

_log = structlog.get_logger("mnemesh.compaction")

SALIENT_FACTS: Final = 60
"""The number of most salient facts that a model sees, and may contradict, confirm or retract."""
SIMILAR_FACTS: Final = 60
"""The number of further facts that it sees, by their similarity to the turns."""
_QUERIES: Final = 20
_FACTS_PER_QUERY: Final = 8
_QUERY_CHARACTERS: Final = 2_000


@dataclass(frozen=True, slots=True)
class StoredMemory:
    """Reads episodes and facts of an agent's scope. Calls no model."""

    episodes: EpisodesPort

    async def read(self, scope: MemoryScope, messages: Sequence[Message]) -> MemoryBundle:
        """Returns the latest episodes, the most salient facts, and the facts that are similar to the messages.

        Raises:
            MnemeshError: recall cannot be read.
        """
        bundle = await self.episodes.bundle((scope,), EPISODES, SALIENT_FACTS)
        if len(bundle.facts) < SALIENT_FACTS:
            return bundle
        found = await asyncio.gather(
            *(self.episodes.search_facts(scope, query, _FACTS_PER_QUERY) for query in _queries(messages))
        )
        known = {fact.id for fact in bundle.facts}
        similar: dict[str, Fact] = {}
        # The best hit of each query first.
        for rank in range(_FACTS_PER_QUERY):
            for hits in found:
                if rank < len(hits) and hits[rank].id not in known and len(similar) < SIMILAR_FACTS:
                    similar.setdefault(hits[rank].id, hits[rank])
        return replace(bundle, facts=(*bundle.facts, *similar.values()))

    async def shown(self, request: CompactionRequest) -> MemoryBundle:
        """Returns the memories that a window may show: of the agent, of the scopes that it shares, and of the only
        identity, the group and the conversation of the window.

        Raises:
            MnemeshError: recall cannot be read.
        """
        return await self.episodes.bundle(request.memory.found, EPISODES, SALIENT_FACTS)

    async def head(self, request: CompactionRequest, cut: Cut) -> "MemoryHead":
        """Returns the memory for the head of a window; that of the present window if recall cannot be read."""
        try:
            return MemoryHead(await self.shown(request))
        except MnemeshError as error:
            _log.warning("memory_unreadable", error=error.message)
            shown = (split_notes(summary_text(m))[0] for m in cut.evicted if m.role is Role.SUMMARY)
            return MemoryHead(None, next(shown, ""))


@dataclass(frozen=True, slots=True)
class MemoryHead:
    """The memory at the head of a window: as recall holds it, or as the window showed it."""

    bundle: MemoryBundle | None
    shown: str = ""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to show."""
        return not self.shown and (self.bundle is None or not (self.bundle.episodes or self.bundle.facts))

    def with_notes(self, request: CompactionRequest, cut: Cut, notes: str, limit: int) -> Summary:
        """Returns the memory with notes on turns whose memories could not be extracted, in at most `limit` tokens."""
        if self.bundle is None:
            text = join_notes(self.shown, notes)
        else:
            turns = count_turns(request.messages[cut.end : request.turn_start])
            text = snapshot(self.bundle, turns, fits(request, limit), notes)
        return Summary(SUMMARY_NOTE + text, text)


def fits(request: CompactionRequest, limit: int) -> Callable[[str], bool]:
    """Returns whether a text may be at the head of a window: in at most `limit` tokens, and the agent's characters."""
    clip = request.settings.clip_chars
    return lambda text: request.text_tokens(text) <= limit and (clip is None or len(text) <= clip)


def without_memory(cut: Cut) -> Cut:
    """Returns the cut with only the notes of an earlier summary, for a summary that is shown below the memory."""
    evicted = []
    for message in cut.evicted:
        if message.role is Role.SUMMARY:
            notes = split_notes(summary_text(message))[1]
            if not notes:
                continue
            evicted.append(replace(message, content=(TextPart(SUMMARY_NOTE + notes),)))
        else:
            evicted.append(message)
    return replace(cut, evicted=tuple(evicted))


def _queries(messages: Sequence[Message]) -> list[str]:
    """Returns the texts of turns as queries. Adjacent turns share a query if there are many."""
    texts = ["\n".join(filter(None, (message.text for message in turn))) for turn in split_turns(messages)]
    texts = [text for text in texts if text.strip()]
    per_query = -(-len(texts) // _QUERIES)
    groups = [texts[start : start + per_query] for start in range(0, len(texts), max(1, per_query))]
    share = _QUERY_CHARACTERS // max(1, per_query)
    return ["\n".join(text[:share] for text in group) for group in groups]
