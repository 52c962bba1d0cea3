"""The other services of a world: the real ones in this process, with views of what they store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mnemesh.archival.v1 import archives_service_pb2 as archives_rpc
from mnemesh.archival.v1.archives_pb2 import Archive
from mnemesh.archival.v1.passages_service_pb2 import ListPassagesRequest, PassageFilter
from mnemesh.blocks.v1 import blocks_pb2, blocks_service_pb2
from mnemesh.recall.v1 import (
    episodes_pb2,
    episodes_service_pb2,
    messages_service_pb2,
    traces_pb2,
    traces_service_pb2,
    traces_service_pb2_grpc,
)
from mnemesh.tools.v1 import tools_pb2, tools_service_pb2
from mnemesh.types.v1.paging_pb2 import SORT_ORDER_ASCENDING
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import MnemeshError, NotFound
from mnemesh_kit.ids import derive_id
from mnemesh_kit.principal import DEFAULT_PRINCIPAL, as_principal
from mnemesh_orchestrator.clients.archival import ArchivalClient
from mnemesh_orchestrator.clients.blocks import BlocksClient, block_from_proto
from mnemesh_orchestrator.clients.episodes import EpisodesClient
from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.clients.tools import ToolsClient, tool_from_proto
from mnemesh_orchestrator.clients.web import WebClient
from mnemesh_orchestrator.errors import REMOTE
from mnemesh_orchestrator.model.context_window import ContextWindow
from mnemesh_orchestrator.model.core_memory import AgentAuthor, Block, BlockEdit
from mnemesh_orchestrator.model.custom_tools import CustomTool, ToolResult
from mnemesh_orchestrator.model.episodes import EpisodeCommit, Fact, MemoryScope
from mnemesh_orchestrator.model.erasure import Erased
from mnemesh_sandbox import Access, Isolation
from mnemesh_sandbox.calls import Answer
from mnemesh_sandbox.isolation import WANTED_AS_ROOT
from mnemesh_sandbox.task import Outcome, OutcomeStatus, Task
from mnemesh_testkit.mesh.local_services import LocalChannel, local_services
from mnemesh_types.convert import message_from_proto
from mnemesh_types.messages import Message

T = TypeVar("T")
_MOST_NEW_MESSAGES = 1_000


def run_now(call: Coroutine[Any, Any, T]) -> T:
    """Runs a call of a service in memory to its end, which never waits for anything outside of this function."""
    with as_principal(DEFAULT_PRINCIPAL):
        try:
            while True:
                call.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class Blocks(BlocksClient):
    """Core memory."""

    def __init__(self, channel: LocalChannel) -> None:
        super().__init__(channel)
        self._agents: dict[str, None] = {}
        self._conversations: dict[str, str] = {}
        self._created: dict[str, None] = {}
        self.effects: list[str] = []
        """The ids of the requests that edited a block, once for each change that a request made."""
        self.erased: list[str] = []

    @property
    def blocks(self) -> dict[str, Block]:
        """Every block by id, in the order of creation."""
        request = blocks_service_pb2.ListBlocksRequest(page_size=1000)
        found = {block.id: block_from_proto(block) for block in run_now(self._stub.ListBlocks(request)).blocks}
        return {block_id: found[block_id] for block_id in (*self._created, *found) if block_id in found}

    @property
    def held(self) -> dict[str, list[str]]:
        """The ids of the blocks that agents and conversations have."""
        found = {}
        for agent in self._agents:
            memory = run_now(super().get(agent))
            found[agent] = [block.id for block in memory.blocks] if memory is not None else []
        for conversation, agent in self._conversations.items():
            memory = run_now(super().get(agent, None, conversation))
            shown = [block.id for block in memory.blocks] if memory is not None else []
            found[conversation] = [block_id for block_id in shown if block_id not in found.get(agent, [])]
        return {holder: ids for holder, ids in found.items() if ids}

    def value(self, agent_id: str, label: str) -> str:
        memory = run_now(super().get(agent_id))
        assert memory is not None
        return next(block.value for block in memory.blocks if block.label == label)

    def put(self, block: Block) -> None:
        """Writes the value of a block, as an owner may at any time."""
        changed = blocks_pb2.Block(id=block.id, value=block.value, limit=max(block.limit, len(block.value)))
        request = blocks_service_pb2.UpdateBlockRequest(block=changed)
        request.update_mask.paths.extend(["value", "limit"])
        run_now(self._stub.UpdateBlock(request))

    def give(self, agent_id: str, block_id: str) -> None:
        """Attaches a block to an agent, as an owner may at any time."""
        run_now(self._stub.AttachBlock(blocks_service_pb2.AttachBlockRequest(agent_id=agent_id, block_id=block_id)))

    async def create(self, request_id: str, agent_id: str, *arguments: Any, **more: Any) -> Block:
        self._agents[agent_id] = None
        block = await super().create(request_id, agent_id, *arguments, **more)
        self._created[block.id] = None
        return block

    async def attach(self, request_id: str, agent_id: str, block_id: str) -> None:
        self._agents[agent_id] = None
        await super().attach(request_id, agent_id, block_id)

    async def isolate(
        self, request_id: str, agent_id: str, conversation_id: str, *more: Any, **options: Any
    ) -> tuple[str, ...]:
        self._conversations[conversation_id] = agent_id
        return await super().isolate(request_id, agent_id, conversation_id, *more, **options)

    async def link(self, request_id: str, link_id: str, agent_ids: Sequence[str], source_agent_id: str) -> None:
        self._agents.update(dict.fromkeys(agent_ids))
        await super().link(request_id, link_id, agent_ids, source_agent_id)

    async def edit(self, request_id: str, author: AgentAuthor, label: str, edit: BlockEdit) -> Block:
        before = self._changes(author.agent_id)
        block = await super().edit(request_id, author, label, edit)
        self.effects.extend([request_id] * (self._changes(author.agent_id) - before))
        return block

    async def erase_agent(self, request_id: str, agent_id: str, **scope: Any) -> Erased:
        self.erased.append(agent_id)
        return await super().erase_agent(request_id, agent_id, **scope)

    def _changes(self, agent_id: str) -> int:
        memory = run_now(super().get(agent_id))
        return sum(block.revision for block in memory.blocks) if memory is not None else 0


class Recall(RecallClient):
    """Messages and windows."""

    def __init__(self, channel: LocalChannel) -> None:
        super().__init__(channel)
        self._traces = traces_service_pb2_grpc.TraceServiceStub(channel)
        self._conversations: dict[str, None] = {}
        self.rows = Rows(self._stored)
        self.commits: list[EpisodeCommit] = []
        self.learned: list[str] = []
        """The texts of facts in the order in which they were learned."""
        self.refuses: MnemeshError | None = None
        self.erased: list[str] = []

    def window(self, conversation_id: str) -> ContextWindow:
        found = run_now(super().get_context(conversation_id))
        assert found is not None
        return found

    @property
    def windows(self) -> dict[str, ContextWindow]:
        """Every window by conversation."""
        return dict(self._windows())

    def _windows(self) -> Iterator[tuple[str, ContextWindow]]:
        for conversation in self._conversations:
            try:
                yield conversation, self.window(conversation)
            except NotFound:
                continue

    def _stored(self, agent_id: str) -> list[Message]:
        found: list[Message] = []
        token = ""
        while True:
            request = messages_service_pb2.ListMessagesRequest(
                agent_ids=[agent_id], page_size=1000, page_token=token, order=SORT_ORDER_ASCENDING
            )
            page = run_now(self._stub.ListMessages(request))
            found += map(message_from_proto, page.messages)
            token = page.next_page_token
            if not token:
                return found

    def interactions(self, agent_id: str) -> list[tuple[str, str, str]]:
        """Returns the tool, the status and the error of each tool call of an agent."""
        request = traces_service_pb2.ListToolInteractionsRequest(agent_id=agent_id)
        found = run_now(self._traces.ListToolInteractions(request)).tool_interactions
        prefix = len("TOOL_INTERACTION_STATUS_")
        return [
            (item.tool_name, traces_pb2.ToolInteractionStatus.Name(item.status)[prefix:], item.error) for item in found
        ]

    def fill(self, agent_id: str, conversation_id: str, messages: Sequence[Message]) -> None:
        """Adds any number of messages to a window."""
        for start in range(0, len(messages), _MOST_NEW_MESSAGES):
            window, added = self.window(conversation_id), messages[start : start + _MOST_NEW_MESSAGES]
            ids = [message.id for message in (*window.messages, *added)]
            key = f"fill-{window.version}"
            run_now(super().replace_context(key, agent_id, conversation_id, window.version, ids, added))

    async def delete_message(self, message_id: str) -> None:
        """Deletes a message, as an owner may at any time."""
        await self._stub.DeleteMessage(messages_service_pb2.DeleteMessageRequest(message_id=message_id))

    async def create_context(self, request_id: str, agent_id: str, conversation_id: str, *more: Any) -> ContextWindow:
        self._conversations[conversation_id] = None
        return await super().create_context(request_id, agent_id, conversation_id, *more)

    async def fork_context(self, *arguments: Any) -> ContextWindow:
        self._conversations[arguments[3]] = None
        return await super().fork_context(*arguments)

    async def replace_context(self, *arguments: Any, memories: Sequence[EpisodeCommit] = (), **more: Any) -> Any:
        if memories and self.refuses is not None:
            raise self.refuses
        before = self.window(arguments[2]).version
        window = await super().replace_context(*arguments, memories=memories, **more)
        if window.version != before:
            self.commits += memories
            self.learned += [change.text for commit in memories for change in commit.changes]
        return window

    async def erase_agent(self, request_id: str, agent_id: str, **scope: Any) -> Erased:
        self.erased.append(agent_id)
        return await super().erase_agent(request_id, agent_id, **scope)


class Rows(Mapping[str, list[Message]]):
    """Every message of an agent, oldest first."""

    def __init__(self, stored: Callable[[str], list[Message]]) -> None:
        self._stored = stored
        self._agents: dict[str, None] = {}

    def __getitem__(self, agent_id: str) -> list[Message]:
        self._agents[agent_id] = None
        return self._stored(agent_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)


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


class Archival(ArchivalClient):
    """Passages."""

    def __init__(self, channel: LocalChannel) -> None:
        super().__init__(channel)
        self.erased: list[str] = []
        self._inserted: list[str] = []

    async def insert(self, *arguments: Any, **more: Any) -> str:
        passage_id = await super().insert(*arguments, **more)
        self._inserted.append(passage_id)
        return passage_id

    def archives(self) -> list[Archive]:
        """All archives."""
        return list(run_now(self._archives.ListArchives(archives_rpc.ListArchivesRequest())).archives)

    def take(self, agent_id: str, archive_id: str) -> None:
        """Detaches an archive from an agent, as an owner may at any time."""
        request = archives_rpc.DetachArchiveRequest(agent_id=agent_id, archive_id=archive_id)
        run_now(self._archives.DetachArchive(request))

    async def texts(self, agent_id: str) -> list[str]:
        """The texts of an agent's passages, in the order in which they were inserted."""
        request = ListPassagesRequest(
            page_size=1000, order=SORT_ORDER_ASCENDING, filter=PassageFilter(agent_id=agent_id)
        )
        passages = (await self._passages.ListPassages(request)).passages
        return [passage.text for passage in sorted(passages, key=lambda passage: self._inserted.index(passage.id))]

    async def erase_agent(self, request_id: str, agent_id: str, **scope: Any) -> Erased:
        self.erased.append(agent_id)
        return await super().erase_agent(request_id, agent_id, **scope)


Run = Callable[[Mapping[str, Any], Mapping[str, str]], tuple[ToolResult, Mapping[str, str]]]


async def _empty_program(_answer: Answer | None) -> Outcome:
    return Outcome(OutcomeStatus.SUCCESS, "4", "out\n", "", 0.0, 1)


class FakeSandbox:
    """Runs functions of this process instead of the sources of tools."""

    isolation = Isolation(frozenset(WANTED_AS_ROOT))

    def __init__(self) -> None:
        self.functions: dict[str, Run] = {}
        self.executed: list[tuple[str, Mapping[str, Any]]] = []
        self.programs: list[Task] = []
        self.program: Callable[[Answer | None], Coroutine[Any, Any, Outcome]] = _empty_program

    def with_settings(self, _settings: object) -> FakeSandbox:
        return self

    def warmed(self, _size: int) -> FakeSandbox:
        return self

    async def close(self) -> None:
        """Holds nothing."""

    async def run(
        self, task: Task, seconds: float, access: Access | None = None, held: AsyncExitStack | None = None
    ) -> Outcome:
        if task.is_program:
            self.programs.append(task)
            return await self.program(None if access is None else access.calls)
        arguments = {name: value for name, value in task.arguments.items() if value is not None}
        self.executed.append((task.function, arguments))
        blocks = task.agent.blocks if task.agent is not None else {}
        result, changed = self.functions[task.function](arguments, blocks)
        status = OutcomeStatus.SUCCESS if result.ok else OutcomeStatus.ERROR
        lines = ["".join(f"{line}\n" for line in part) for part in (result.stdout, result.stderr)]
        return Outcome(status, result.text, lines[0], lines[1], 0.0, len(result.text), changed)


class Tools(ToolsClient):
    """Custom tools, each a function of its arguments and the agent's blocks."""

    def __init__(self, channel: LocalChannel, sandbox: FakeSandbox) -> None:
        super().__init__(channel)
        self._sandbox = sandbox
        self._builtin: list[CustomTool] = []

    @property
    def executed(self) -> list[tuple[str, Mapping[str, Any]]]:
        return self._sandbox.executed

    @property
    def programs(self) -> list[Task]:
        """The programs that ran."""
        return self._sandbox.programs

    def follow_program(self, program: Callable[[Answer], Coroutine[Any, Any, str]]) -> None:
        """Runs this function in place of the next programs; it returns their result."""

        async def run(answer: Answer | None) -> Outcome:
            assert answer is not None
            text = await program(answer)
            return Outcome(OutcomeStatus.SUCCESS, text, "", "", 0.0, len(text))

        self._sandbox.program = run

    def list_builtin(self, name: str) -> CustomTool:
        """Lists a built-in tool, as a tools service of another version may."""
        tool = CustomTool(derive_id("tool", name), name, "{}", builtin=True)
        self._builtin.append(tool)
        return tool

    async def definitions(self, ids: Sequence[str] = (), names: Sequence[str] = ()) -> tuple[CustomTool, ...]:
        builtin = tuple(tool for tool in self._builtin if tool.id in ids or tool.name in names)
        return builtin + await super().definitions(ids, names)

    def add(self, name: str, run: Run | str = "done", **properties: Any) -> CustomTool:
        text = run if isinstance(run, str) else ""
        constant: Run = lambda *_: (ToolResult(ok=True, text=text), {})  # noqa: E731
        self._sandbox.functions[name] = constant if isinstance(run, str) else run
        fields = {_FIELDS[key]: value for key, value in properties.items()}
        schema = {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": []},
        }
        tool = tools_pb2.Tool(
            name=name,
            type=tools_pb2.TOOL_TYPE_CUSTOM,
            source_type=tools_pb2.SOURCE_TYPE_PYTHON,
            source_code=f"def {name}(agent_state, n: int = 0) -> str:\n    return ''\n",
            json_schema=json.dumps(schema),
            **fields,
        )
        return tool_from_proto(run_now(self._tools.UpsertTool(tools_service_pb2.UpsertToolRequest(tool=tool))).tool)

    def delete(self, tool_id: str) -> None:
        run_now(self._tools.DeleteTool(tools_service_pb2.DeleteToolRequest(tool_id=tool_id)))


_FIELDS = {
    "requires_approval": "default_requires_approval",
    "parallel": "enable_parallel_execution",
    "idempotent": "idempotent",
    "return_char_limit": "return_char_limit",
}


@dataclass(frozen=True, slots=True)
class RealServices:
    """The services of a world."""

    blocks: Blocks
    recall: Recall
    episodes: Episodes
    archival: Archival
    tools: Tools
    web: WebClient


@asynccontextmanager
async def real_services(directory: Path, clock: Clock) -> AsyncIterator[RealServices]:
    """Opens the services over empty databases in memory."""
    sandbox = FakeSandbox()
    names, parts = ("blocks", "recall", "archival", "tools"), {"tools": {"sandbox": sandbox}}
    async with local_services(directory, *names, clock=clock, errors=REMOTE, parts=parts) as channels:
        recall = Recall(channels["recall"])
        yield RealServices(
            Blocks(channels["blocks"]),
            recall,
            Episodes(channels["recall"], recall),
            Archival(channels["archival"]),
            Tools(channels["tools"], sandbox),
            WebClient(channels["tools"]),
        )
