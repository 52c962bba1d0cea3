"""The use cases of agents as models, and of embeddings."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable, Iterator
from typing import Final, Generic, TypeVar

from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import is_id
from mnemesh_kit.time import Clock

from mnemesh_gateway.clients.agents import AgentsClient, EmbeddingsClient
from mnemesh_gateway.errors import InvalidRequest, UnknownAgent, UnsupportedParameter
from mnemesh_gateway.model.models import AgentInfo, EmbeddedTexts, EmbeddingsRequest

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_SECONDS: Final = 10.0
_SHOWN: Final = 20


class Cache(Generic[K, V]):
    """The entries that were used last, each for a limited time after it was put."""

    def __init__(self, capacity: int, seconds: float, clock: Clock) -> None:
        self._capacity = capacity
        self._seconds = seconds
        self._clock = clock
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Returns an entry that has not expired, and marks it as used."""
        found = self._entries.get(key)
        if found is None:
            return None
        if found[0] <= self._clock.monotonic():
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return found[1]

    def put(self, key: K, value: V) -> None:
        """Stores an entry, and removes the one that was not used for the longest time if there are too many."""
        self._entries[key] = (self._clock.monotonic() + self._seconds, value)
        self._entries.move_to_end(key)
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def remove(self, key: K) -> None:
        """Removes an entry if it exists."""
        self._entries.pop(key, None)

    def items(self) -> Iterator[tuple[K, V, float]]:
        """Yields the entries that have not expired, with the seconds for which they are still kept."""
        now = self._clock.monotonic()
        yield from ((key, value, end - now) for key, (end, value) in self._entries.items() if end > now)


class AgentService:
    """Finds agents by the `model` of a request. What was found is kept for ten seconds."""

    def __init__(self, agents: AgentsClient, clock: Clock) -> None:
        self._agents = agents
        self._found: Cache[tuple[str, str], AgentInfo] = Cache(1_000, _SECONDS, clock)

    async def find(self, caller: Principal, model: str) -> AgentInfo:
        """Returns the agent with an id or a name.

        Raises:
            UnknownAgent: There is none.
            InvalidRequest: Several agents have the name.
        """
        key = (caller.organization_id, model)
        found = self._found.get(key)
        if found is None:
            found = await self._find(model)
            self._found.put(key, found)
        return found

    async def _find(self, model: str) -> AgentInfo:
        if is_id(model, "agent"):
            try:
                return await self._agents.get(model)
            except NotFound:
                raise UnknownAgent(model, ()) from None
        agents = await self._agents.named(model) if model.isprintable() and model else ()
        if len(agents) > 1:
            raise InvalidRequest(f"Several agents have the name {model[:200]!r}. Use the id of one.", "model")
        if not agents:
            names: list[str] = []
            async for agent in self._listed():
                names.append(agent.name)
                if len(names) == _SHOWN:
                    break
            raise UnknownAgent(model, tuple(names))
        return agents[0]

    def list(self, caller: Principal) -> AsyncIterator[AgentInfo]:  # noqa: ARG002  (the port knows the caller)
        """Yields the agents of the caller's organization that talk to users, oldest first."""
        return self._listed()

    async def _listed(self) -> AsyncIterator[AgentInfo]:
        async for agent in self._agents.list():
            if not agent.is_partner:
                yield agent


class EmbeddingsService:
    """Embeds texts."""

    def __init__(self, embedders: EmbeddingsClient) -> None:
        self._embedders = embedders

    async def embed(self, caller: Principal, request: EmbeddingsRequest) -> EmbeddedTexts:  # noqa: ARG002
        """Returns the vectors of a request. The port knows the caller.

        Raises:
            UnknownEmbedder: There is no such embedder.
            InvalidRequest: A text is not valid, or there are too many.
            UnsupportedParameter: The vectors of the embedder have another length.
        """
        embedded = await self._embedders.embed(request.model, request.texts)
        if request.dimensions not in (None, embedded.dimension):
            raise UnsupportedParameter(
                "dimensions", f"The vectors of {embedded.embedder} have {embedded.dimension} numbers."
            )
        return embedded
