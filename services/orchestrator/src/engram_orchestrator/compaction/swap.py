"""Puts a smaller window in place: what is to be remembered first, then the window."""

from hashlib import sha256

import msgspec
import structlog
from engram_kit.errors import (
    Aborted,
    DeadlineExceeded,
    EngramError,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from engram_kit.ids import derive_id

from engram_orchestrator.model.compaction import Compaction
from engram_orchestrator.model.episodes import EpisodeCommit
from engram_orchestrator.model.memory import Window
from engram_orchestrator.ports import EpisodesPort, RecallPort

_log = structlog.get_logger("engram.compaction")


class Swap:
    """The one way that a compaction takes effect. A repeat, also after a crash, has no further effect.

    The memories go under keys that follow from what they say: what was kept
    before a crash is not kept again when the same compaction is put in place
    by whoever takes over.
    """

    def __init__(self, recall: RecallPort, episodes: EpisodesPort) -> None:
        self._recall = recall
        self._episodes = episodes

    async def put(
        self, request_id: str, agent_id: str, conversation_id: str, compaction: Compaction, run_id: str, epoch: int
    ) -> Window:
        """The new window.

        Raises:
            WindowMoved, LeaseLost: as recall's ReplaceContext; the memories are kept by then.
            Unavailable, DeadlineExceeded: recall is away.
        """
        for place, commit in enumerate(compaction.commits):
            await self._keep(f"{conversation_id}/{compaction.base_version}/{place}", commit)
        return await self._recall.replace_context(
            request_id,
            agent_id,
            conversation_id,
            compaction.base_version,
            compaction.message_ids,
            (compaction.summary,),
            system_text=compaction.system_text,
            run_id=run_id,
            epoch=epoch,
        )

    async def _keep(self, place: str, commit: EpisodeCommit) -> None:
        """Keeps a memory. What recall refuses for good is left out: the window has to become smaller all the same."""
        while True:
            digest = sha256(msgspec.json.encode(commit)).hexdigest()
            try:
                await self._episodes.commit(derive_id("request", place, digest), commit)
            except (FailedPrecondition, NotFound) as error:
                # Somebody closed or erased a fact since the model saw it.
                smaller = commit.without(error.metadata.get("fact_id") or error.metadata.get("resource_id", ""))
                if smaller == commit:
                    _log.warning("an episode is not kept", error=error.message)
                    return
                commit = smaller
            except (Unavailable, DeadlineExceeded, ResourceExhausted, Aborted):
                raise
            except EngramError as error:
                _log.warning("an episode is not kept", error=error.message)
                return
            else:
                return
