"""Episodes and facts in the real recall service of a world, with views of what it stores."""

from mnemesh.recall.v1 import (
    episodes_pb2,
    episodes_service_pb2,
)
from mnemesh_orchestrator.clients.recall import EpisodesClient
from mnemesh_orchestrator.model.episodes import EpisodeCommit, Fact, MemoryScope
from mnemesh_testkit.mesh.local_services import LocalChannel

from .recall import Recall
from .synchronous import run_now


class Episodes(EpisodesClient):
    """Episodes and facts."""

    def __init__(self, channel: LocalChannel, recall: Recall) -> None:
        super().__init__(channel)
        self._recall = recall

    @property
    def commits(self) -> list[EpisodeCommit]:
        return self._recall.commits

    @property
    def closed(self) -> dict[str, str]:
        """The facts that others replaced, and the ids of these."""
        return {fact.id: fact.superseded_by_id for fact in self._known() if fact.HasField("superseded_by_id")}

    def closed_texts(self) -> dict[str, str]:
        """Returns the texts of the facts that others replaced, and the texts of these."""
        texts = {fact.id: fact.text for fact in self._known()}
        return {texts[old]: texts[new] for old, new in self.closed.items()}

    @property
    def sources(self) -> dict[str, list[str]]:
        """By fact, the messages from which it was learned, in the order in which the facts were learned."""
        return {fact.id: list(fact.source.message_ids) for fact in self._known()}

    def _known(self) -> list[episodes_pb2.Fact]:
        request = episodes_service_pb2.ListFactsRequest(
            page_size=1000, filter=episodes_service_pb2.FactFilter(include_invalid=True)
        )
        return sorted(run_now(self._stub.ListFacts(request)).facts, key=lambda fact: self._position(fact.text))

    def _position(self, text: str) -> int:
        return self._recall.learned.index(text)

    async def commit(self, request_id: str, commit: EpisodeCommit) -> None:
        await super().commit(request_id, commit)
        self._recall.learned += [change.text for change in commit.changes]

    async def history(self, fact_id: str) -> list[episodes_pb2.Fact]:
        """Returns the facts that superseded one another, oldest first."""
        request = episodes_service_pb2.ListFactHistoryRequest(fact_id=fact_id)
        return list((await self._stub.ListFactHistory(request)).facts)

    def in_scope(self, **scope: str) -> list[str]:
        """The texts of the facts of a scope that are valid, in the order in which they were learned."""
        filter_ = episodes_service_pb2.FactFilter(scopes=[episodes_pb2.MemoryScope(**scope)])
        listed = run_now(self._stub.ListFacts(episodes_service_pb2.ListFactsRequest(page_size=1000, filter=filter_)))
        return [fact.text for fact in listed.facts]

    def invalidate(self, fact: Fact) -> None:
        """Declares a fact invalid, as another client may at any time."""
        operation = episodes_pb2.InvalidateOperation(fact_id=fact.id)
        run_now(self._stub.InvalidateFact(episodes_service_pb2.InvalidateFactRequest(operation=operation)))

    def facts(self, agent_id: str, name: str | None = None) -> list[Fact]:
        """The facts that are valid, in the order in which they were learned."""
        bundle = run_now(self.bundle((MemoryScope(agent_id, name),), 100, 100))
        return sorted(bundle.facts, key=lambda fact: self._position(fact.text))

    def texts(self, agent_id: str, name: str | None = None) -> list[str]:
        return [fact.text for fact in self.facts(agent_id, name)]

    def add(self, agent_id: str, text: str, salience: float = 0.5, *, name: str | None = None) -> Fact:
        """Stores a fact."""
        self._recall.learned.append(text)
        owner = {"agent_id": agent_id} if name is None else {"name": name}
        scope = episodes_pb2.MemoryScope(**owner)
        request = episodes_service_pb2.CreateFactRequest(
            fact=episodes_pb2.Fact(text=text, salience=salience, scope=scope)
        )
        run_now(self._stub.CreateFact(request))
        return next(fact for fact in self.facts(agent_id, name) if fact.text == text)
