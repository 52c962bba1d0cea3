"""Agents as models, and embeddings."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from typing import Final, Generic, TypeVar

import grpc
from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1.agents_service_pb2_grpc import AgentServiceStub
from mnemesh.archival.v1 import embeddings_service_pb2 as embeddings_rpc
from mnemesh.archival.v1.embeddings_service_pb2_grpc import EmbeddingServiceStub
from mnemesh.types.v1 import paging_pb2
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.ids import is_id
from mnemesh_kit.time import Clock

from mnemesh_gateway.errors import EmbedderUnknown, InvalidRequest, UnknownAgent, UnknownEmbedder, UnsupportedParameter
from mnemesh_gateway.usecases.answering import READ

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_SECONDS: Final = 10.0
_EMBED_SECONDS: Final = 60.0
_SHOWN: Final = 20
_PAGE: Final = 200
_PARTNERS: Final = (pb.AGENT_TYPE_SLEEPTIME, pb.AGENT_TYPE_VOICE_SLEEPTIME)
"""The types of agents that work for another one while that is not in use, and do not talk to users."""


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

    def __init__(self, channel: grpc.aio.Channel, clock: Clock) -> None:
        self._stub = AgentServiceStub(channel)
        self._found: Cache[tuple[str, frozenset[str] | None, str], pb.Agent] = Cache(1_000, _SECONDS, clock)

    async def find(self, caller: Principal, model: str) -> pb.Agent:
        """Returns the agent with an id or a name.

        Raises:
            UnknownAgent: there is none.
            InvalidRequest: several agents have the name.
        """
        key = (caller.organization_id, caller.agents, model)
        found = self._found.get(key)
        if found is None:
            found = await self._find(model)
            self._found.put(key, found)
        return found

    async def _find(self, model: str) -> pb.Agent:
        if is_id(model, "agent"):
            try:
                return (await self._stub.GetAgent(rpc.GetAgentRequest(agent_id=model), timeout=READ)).agent
            except NotFound:
                raise UnknownAgent(model, ()) from None
        agents: Sequence[pb.Agent] = ()
        if model.isprintable() and model:
            request = rpc.ListAgentsRequest(page_size=2, filter=rpc.AgentFilter(name=model))
            agents = (await self._stub.ListAgents(request, timeout=READ)).agents
        if len(agents) > 1:
            raise InvalidRequest(f"Several agents have the name {model[:200]!r}. Use the id of one.", "model")
        if not agents:
            names: list[str] = []
            async for agent in self.list():
                names.append(agent.name)
                if len(names) == _SHOWN:
                    break
            raise UnknownAgent(model, tuple(names))
        return agents[0]

    async def list(self) -> AsyncIterator[pb.Agent]:
        """Yields the agents of the caller's organization that talk to users, oldest first, without hidden ones."""
        request = rpc.ListAgentsRequest(
            page_size=_PAGE, order=paging_pb2.SORT_ORDER_ASCENDING, filter=rpc.AgentFilter(hidden=False)
        )
        while True:
            page = await self._stub.ListAgents(request, timeout=READ)
            for agent in page.agents:
                if agent.type not in _PARTNERS:
                    yield agent
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token


class EmbeddingsService:
    """Embeds texts. The embedders are the same for all organizations."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = EmbeddingServiceStub(channel)

    async def embed(
        self, embedder: str, texts: Sequence[str], dimensions: int | None
    ) -> embeddings_rpc.EmbedTextsResponse:
        """Returns the vectors of texts, in order.

        Args:
            embedder: the handle of an embedder.
            texts: the texts.
            dimensions: the length that the vectors must have; None for that of the embedder.

        Raises:
            UnknownEmbedder: there is no such embedder.
            InvalidRequest: a text is not valid, or there are too many. The error names `input` or `input[i]`.
            UnsupportedParameter: the vectors of the embedder have another length.
        """
        request = embeddings_rpc.EmbedTextsRequest(embedder=embedder, texts=texts)
        try:
            response = await self._stub.EmbedTexts(request, timeout=_EMBED_SECONDS)
        except EmbedderUnknown as error:
            raise UnknownEmbedder(embedder, error.message) from error
        except InvalidArgument as error:
            raise _renamed(error, len(texts)) from error
        if dimensions not in (None, response.dimension):
            raise UnsupportedParameter(
                "dimensions", f"The vectors of {response.embedder} have {response.dimension} numbers."
            )
        return response


def _renamed(error: InvalidArgument, count: int) -> InvalidArgument:
    """Returns the error with the names of OpenAI's fields."""
    field = error.field or ""
    if field == "embedder":
        param = "model"
    elif field.startswith("texts"):
        param = "input" if count == 1 else f"input{field.removeprefix('texts')}"
    else:
        return error
    return InvalidRequest(error.message.replace(field, param, 1), param)
