"""The word indexes of agents: kept complete in the background, and cleaned by maintenance."""

from __future__ import annotations

import structlog
from mnemesh_kit.background import with_pause
from mnemesh_kit.errors import Unavailable

from mnemesh_recall.store.base import WordSegmentStore

_log = structlog.get_logger("mnemesh.recall.words")


class WordSegmentation:
    """Moves new documents to the segments of their agents, so that searches read few rows.

    A search reads a document that is not in a segment yet from its row. An agent with many such documents, as after an
    upgrade, is searched in the full-text index until this has caught up.
    """

    def __init__(self, store: WordSegmentStore) -> None:
        self._store = store
        self._has_begun = False

    async def step(self) -> None:
        """Indexes the agents whose documents have changed; at first, all with many documents to index."""
        agents = self._store.changed_agents()
        if not self._has_begun:
            agents = list(dict.fromkeys([*agents, *await self._store.long_tails()]))
            self._has_begun = True
        for number, agent_id in enumerate(agents):
            try:
                await self._index(agent_id)
            except Unavailable as error:
                for left in agents[number:]:
                    self._store.mark_changed(left)
                _log.warning("word_segments_wait", agents=len(agents) - number, error=str(error))
                return

    async def rewrite(self) -> int:
        """Removes the words of deleted documents from all segments. Returns the number of agents with segments."""
        agents = await self._store.agents()
        for agent_id in agents:
            await self._store.rewrite(agent_id)
        return len(agents)

    async def _index(self, agent_id: str) -> None:
        while await with_pause(lambda: self._store.move_tail(agent_id)):
            pass
        while await with_pause(lambda: self._store.merge(agent_id)):
            pass
