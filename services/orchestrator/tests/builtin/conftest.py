"""Fakes of the memory services for built-in tools. They record calls, and answer or fail as configured."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.builtin.agent_messages import AgentMessages
from mnemesh_orchestrator.builtin.executor import BuiltinCall, BuiltinTools
from mnemesh_orchestrator.builtin.files import FileTools
from mnemesh_orchestrator.builtin.schedules import ScheduleTools
from mnemesh_orchestrator.loop.services import OptionalServices, RetryPolicy
from mnemesh_orchestrator.model.conversations import MessageHits, NamedTime
from mnemesh_orchestrator.model.core_memory import AgentAuthor, BlockEdit, CoreMemory
from mnemesh_orchestrator.model.episodes import MemoryHits, MemoryScope, PassageHit
from mnemesh_orchestrator.model.rules import WebPart, WebQuery
from mnemesh_orchestrator.model.runs import Run
from mnemesh_types.blocks import Block
from mnemesh_types.tools import SearchResult

from ..support.files import Files

NOW = datetime(2026, 1, 20, 12, 0, tzinfo=UTC)
RUN = Run("run-1", "org-1", "user-1", "agent-1", "conv-1", NOW, NOW, ())
AUTHOR = AgentAuthor("agent-1", "call-1", "run-1")
EDITED = (
    "The core memory block with label `human` has been edited. Review the changes and make sure they are as expected "
    "(correct indentation, no duplicate lines, etc). Edit the memory block again if necessary."
)
Make = Callable[..., BuiltinCall]


@dataclass
class Services:
    """A fake of all three services. `asked` holds the calls in order; every call raises `refusal` if it is set."""

    asked: list[tuple[Any, ...]] = field(default_factory=list)
    refusal: MnemeshError | None = None
    core: CoreMemory = field(default_factory=lambda: CoreMemory("agent-1", 1))
    hits: tuple[Any, ...] = ()
    times: tuple[NamedTime, ...] = ()
    memories: MemoryHits = field(default_factory=MemoryHits)

    def _note(self, *call: Any) -> None:
        self.asked.append(call)
        if self.refusal is not None:
            raise self.refusal

    async def get(
        self, agent_id: str, if_revision: int | None = None, conversation_id: str | None = None
    ) -> CoreMemory | None:
        return self.core

    async def edit(self, request_id: str, author: AgentAuthor, label: str, edit: BlockEdit) -> Block:
        self._note("edit", request_id, author, label, edit)
        return Block(id="block-1", label=label, value="", limit=10)

    async def create(self, request_id: str, agent_id: str, block: Block) -> Block:
        self._note("create", request_id, agent_id, block)
        return Block(id="block-1", label=block.label, value=block.value, limit=20_000, description=block.description)

    async def detach(self, request_id: str, agent_id: str, label: str) -> None:
        self._note("detach", request_id, agent_id, label)

    async def relabel(self, request_id: str, block_id: str, label: str) -> Block:
        self._note("relabel", request_id, block_id, label)
        return Block(id=block_id, label=label, value="", limit=10)

    async def describe(self, request_id: str, block_id: str, description: str) -> Block:
        self._note("describe", request_id, block_id, description)
        return Block(id=block_id, label="x", value="", limit=10, description=description)

    async def insert(self, request_id: str, agent_id: str, text: str, tags: Any = (), **_: Any) -> str:
        self._note("insert", request_id, agent_id, text, tuple(tags))
        return "passage-1"

    async def search(self, agent_id: str, query: str, **options: Any) -> tuple[PassageHit, ...]:
        self._note("search", agent_id, query, options)
        return self.hits


@dataclass
class Recalled:
    """A fake search of messages."""

    tiers: Services

    async def search(self, agent_id: str, query: str, **options: Any) -> MessageHits:
        self.tiers._note("search", agent_id, query, options)
        return MessageHits(self.tiers.hits, self.tiers.times)


@dataclass
class Remembered:
    """A fake search of episodes and facts."""

    tiers: Services

    async def search(self, scopes: Sequence[MemoryScope], query: str, **options: Any) -> MemoryHits:
        self.tiers._note("remember", tuple(scopes), query, options)
        return self.tiers.memories


@dataclass
class Web:
    """A fake of the web."""

    tiers: Services
    found: tuple[SearchResult, ...] = ()
    part: WebPart = field(default_factory=lambda: WebPart("http://a.example/", "A page", "The text.", 0, 9))

    async def search(self, query: WebQuery) -> tuple[SearchResult, ...]:
        self.tiers._note("search_web", query)
        return self.found

    async def fetch(self, url: str, start: int) -> WebPart:
        self.tiers._note("fetch", url, start)
        return self.part


@pytest.fixture
def web(tiers: Services) -> Web:
    return Web(tiers)


@pytest.fixture
def tiers() -> Services:
    return Services()


@pytest.fixture
def tools(tiers: Services, web: Web) -> BuiltinTools:
    messages = AgentMessages(tiers, tiers, tiers, FrozenClock(NOW), 600)  # type: ignore[arg-type]
    optional = OptionalServices(RetryPolicy(FrozenClock(NOW)), 0)
    files, memories = FileTools(Files(), optional), Remembered(tiers)
    schedules = ScheduleTools(tiers, FrozenClock(NOW), asyncio.Event())  # type: ignore[arg-type]
    return BuiltinTools(
        tiers, Recalled(tiers), memories, tiers, FrozenClock(NOW), messages, web, files, tiers, optional, schedules
    )  # type: ignore[arg-type]


@pytest.fixture
def call() -> Make:
    def make(name: str, arguments: Mapping[str, Any] | None = None, **given: Any) -> BuiltinCall:
        return BuiltinCall(
            name=name,
            arguments={**(arguments or {}), **given},
            agent_id="agent-1",
            time_zone="Europe/Berlin",
            tool_call_id="call-1",
            run=RUN,
            effect_prefix="step-1/0",
        )

    return make
