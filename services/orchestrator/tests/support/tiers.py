"""The other rooms in memory, small and with their real promises: versions, idempotent effects, epochs, rebasing."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from mnemesh_kit.clock import FrozenClock
from mnemesh_kit.errors import Aborted, AlreadyExists, FailedPrecondition, MnemeshError, NotFound, RequestIdReused
from mnemesh_kit.ids import derive_id
from mnemesh_orchestrator.errors import LeaseLost, StepConflict, WindowMoved
from mnemesh_orchestrator.model.archival import ArchivalSummary, PassageHit
from mnemesh_orchestrator.model.context_window import CommitOutcome, ContextWindow, MessageHit, StepCommit
from mnemesh_orchestrator.model.core_memory import (
    AgentAuthor,
    Append,
    Block,
    BlockEdit,
    CoreMemory,
    InsertLine,
    Patch,
    ReplaceAll,
    ReplaceUnique,
    Rethink,
)
from mnemesh_orchestrator.model.custom_tools import CustomTool, ToolResult
from mnemesh_orchestrator.model.episodes import (
    Change,
    Episode,
    EpisodeCommit,
    Fact,
    MemoryBundle,
    MemoryHits,
    MemoryScope,
)
from mnemesh_orchestrator.model.erasure import Erased
from mnemesh_types.messages import Message, TextPart

_NO_TIME = datetime.min.replace(tzinfo=UTC)


class Once:
    """A ledger of requests: an effect takes place once, and its first result is given again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, Any]] = {}

    def __call__(self, request_id: str, content: Any, effect: Callable[[], Any]) -> Any:
        if request_id in self._known:
            before, result = self._known[request_id]
            if before != content:
                raise RequestIdReused("This request_id was used before with other content.", field="request_id")
            return result
        result = effect()
        self._known[request_id] = (content, result)
        return result


class Blocks:
    """Core memory."""

    def __init__(self, clock: FrozenClock) -> None:
        self._clock = clock
        self._once = Once()
        self.blocks: dict[str, Block] = {}
        self.held: dict[str, list[str]] = {}
        self.revisions: dict[str, int] = {}
        self.touched: dict[str, datetime] = {}
        self.effects: list[str] = []
        self.erased: list[str] = []

    def value(self, agent_id: str, label: str) -> str:
        return self._held(agent_id, label).value

    async def get(
        self, agent_id: str, if_revision: int | None = None, conversation_id: str | None = None
    ) -> CoreMemory | None:
        own = {self.blocks[block_id].label: block_id for block_id in self.held.get(conversation_id or "", ())}
        revision = self.revisions.get(agent_id, 0) + self.revisions.get(conversation_id or "", 0)
        if if_revision == revision:
            return None
        held = (self.blocks[block_id] for block_id in self.held.get(agent_id, ()))
        blocks = tuple(self.blocks[own.get(block.label, block.id)] for block in held)
        return CoreMemory(agent_id, revision, blocks, self.touched.get(agent_id))

    async def isolate(
        self,
        request_id: str,
        agent_id: str,
        conversation_id: str,
        labels: Sequence[str],
        source_conversation_id: str | None = None,
    ) -> tuple[str, ...]:
        def effect() -> tuple[str, ...]:
            for label in labels:
                copy = replace(
                    self._shown(agent_id, source_conversation_id, label), id=derive_id("block", conversation_id, label)
                )
                self.blocks[copy.id] = copy
                self._give(conversation_id, copy.id)
            return tuple(self.held[conversation_id])

        return self._once(request_id, (agent_id, conversation_id, labels), effect)  # type: ignore[no-any-return]

    async def release(self, request_id: str, agent_id: str, conversation_id: str) -> None:
        self._once(request_id, (agent_id, conversation_id), lambda: self.held.pop(conversation_id, None))

    def _shown(self, agent_id: str, conversation_id: str | None, label: str) -> Block:
        own = (self.blocks[block_id] for block_id in self.held.get(conversation_id or "", ()))
        return next((block for block in own if block.label == label), None) or self._held(agent_id, label)

    async def edit(self, request_id: str, author: AgentAuthor, label: str, edit: BlockEdit) -> Block:
        def effect() -> Block:
            block = self._shown(author.agent_id, author.conversation_id, label)
            if block.read_only:
                raise _refused("BLOCK_READ_ONLY", label=label)
            value = _edited(block, edit)
            if len(value) > block.limit:
                raise _refused("BLOCK_LIMIT_EXCEEDED", label=label, limit=str(block.limit), size=str(len(value)))
            self.effects.append(request_id)
            return self.put(replace(block, value=value))

        return self._once(request_id, (author, label, edit), effect)  # type: ignore[no-any-return]

    def put(self, block: Block) -> Block:
        """Writes a block for all its holders, as an owner may at any time."""
        block = self.blocks[block.id] = replace(block, revision=block.revision + 1)
        for agent_id, ids in self.held.items():
            if block.id in ids:
                self._touch(agent_id)
        return block

    async def create(
        self, request_id: str, agent_id: str, block: Block, metadata: str | None = None, tags: Sequence[str] = ()
    ) -> Block:
        def effect() -> Block:
            made = replace(block, id=derive_id("block", request_id), limit=block.limit or 20_000, revision=1)
            self.blocks[made.id] = made
            self._give(agent_id, made.id)
            return made

        return self._once(request_id, (agent_id, block), effect)  # type: ignore[no-any-return]

    async def attach(self, request_id: str, agent_id: str, block_id: str) -> None:
        if block_id not in self.blocks:
            raise NotFound(f"There is no block {block_id}.", resource_id=block_id)
        self._once(request_id, (agent_id, block_id), lambda: self._give(agent_id, block_id))

    async def detach(self, request_id: str, agent_id: str, label: str) -> None:
        def effect() -> None:
            self.held[agent_id].remove(self._held(agent_id, label).id)
            self._touch(agent_id)

        self._once(request_id, (agent_id, label), effect)

    async def relabel(self, request_id: str, block_id: str, label: str) -> Block:
        return self._once(request_id, label, lambda: self.put(replace(self.blocks[block_id], label=label)))  # type: ignore[no-any-return]

    async def describe(self, request_id: str, block_id: str, description: str) -> Block:
        change = replace(self.blocks[block_id], description=description)
        return self._once(request_id, description, lambda: self.put(change))  # type: ignore[no-any-return]

    async def erase_agent(self, request_id: str, agent_id: str) -> Erased:
        self.erased.append(agent_id)
        return Erased(deleted_blocks=len(self.held.pop(agent_id, ())))

    def _give(self, agent_id: str, block_id: str) -> None:
        self.held.setdefault(agent_id, []).append(block_id)
        self._touch(agent_id)

    def _touch(self, agent_id: str) -> None:
        self.revisions[agent_id] = self.revisions.get(agent_id, 0) + 1
        self.touched[agent_id] = self._clock.now()

    def _held(self, agent_id: str, label: str) -> Block:
        for block_id in self.held.get(agent_id, ()):
            if self.blocks[block_id].label == label:
                return self.blocks[block_id]
        labels = ",".join(self.blocks[block_id].label for block_id in self.held.get(agent_id, ()))
        raise _refused("BLOCK_LABEL_NOT_FOUND", label=label, labels=labels)


def _edited(block: Block, edit: BlockEdit) -> str:
    match edit:
        case Append(text):
            return f"{block.value}\n{text}" if block.value else text
        case ReplaceAll(old, new) | ReplaceUnique(old, new):
            if block.value.count(old) != 1:
                reason = "BLOCK_TEXT_AMBIGUOUS" if old in block.value else "BLOCK_TEXT_NOT_FOUND"
                raise _refused(reason, label=block.label)
            return block.value.replace(old, new)
        case InsertLine(line, text, base_revision):
            _require_revision(block, base_revision)
            lines = block.value.split("\n") if block.value else []
            place = len(lines) if line == -1 else line
            return "\n".join((*lines[:place], text, *lines[place:]))
        case Rethink(value, base_revision):
            _require_revision(block, base_revision)
            return value
        case Patch():
            raise NotImplementedError


def _require_revision(block: Block, base_revision: int | None) -> None:
    if base_revision not in (None, block.revision):
        raise _refused("BLOCK_REVISION_MISMATCH", Aborted, label=block.label, value=block.value)


def _refused(reason: str, kind: type[MnemeshError] = FailedPrecondition, /, **metadata: str) -> MnemeshError:
    error = kind(reason, **metadata)
    error.reason = reason
    return error


class Recall:
    """Windows and messages, and with a new window what is remembered."""

    def __init__(self, episodes: "Episodes") -> None:
        self._once = Once()
        self._episodes = episodes
        self._commits: dict[str, tuple[Any, CommitOutcome]] = {}
        self.windows: dict[str, ContextWindow] = {}
        self.rows: dict[str, list[Message]] = {}
        self._known: dict[str, dict[str, Message]] = {}
        self.erased: list[str] = []

    def window(self, conversation_id: str) -> ContextWindow:
        return self.windows[conversation_id]

    async def create_context(
        self, request_id: str, agent_id: str, conversation_id: str, messages: Sequence[Message]
    ) -> ContextWindow:
        def effect() -> ContextWindow:
            if conversation_id in self.windows:
                raise AlreadyExists("The conversation has a window.")
            window = ContextWindow(conversation_id, agent_id, 1, self._store(agent_id, messages), 0)
            return self._keep(window)

        return self._once(request_id, (agent_id, conversation_id, tuple(messages)), effect)  # type: ignore[no-any-return]

    async def fork_context(
        self,
        request_id: str,
        agent_id: str,
        source_conversation_id: str,
        conversation_id: str,
        system: Message,
        until_message_id: str | None = None,
    ) -> ContextWindow:
        def effect() -> ContextWindow:
            if source_conversation_id not in self.windows:
                raise NotFound("There is no such conversation.", resource_id=source_conversation_id)
            shared = self.windows[source_conversation_id].messages[1:]
            if conversation_id in self.windows:
                raise AlreadyExists("The conversation has a window.")
            if until_message_id is not None:
                ids = [message.id for message in shared]
                if until_message_id not in ids:
                    raise NotFound("The window does not show it.", field="until_message_id")
                shared = shared[: ids.index(until_message_id) + 1]
            own = self._store(agent_id, (system,))
            return self._keep(ContextWindow(conversation_id, agent_id, 1, (*own, *shared), 0))

        content = (source_conversation_id, conversation_id, system, until_message_id)
        return self._once(request_id, content, effect)  # type: ignore[no-any-return]

    async def delete_context(self, request_id: str, conversation_id: str) -> None:
        def effect() -> None:
            window = self.windows.pop(conversation_id, None)
            if window is None:
                raise NotFound("There is no such conversation.", resource_id=conversation_id)
            system = window.messages[0].id
            rows = self.rows[window.agent_id]
            self.rows[window.agent_id] = [message for message in rows if message.id != system]

        self._once(request_id, conversation_id, effect)

    async def get_context(self, conversation_id: str, if_version: int | None = None) -> ContextWindow | None:
        if conversation_id not in self.windows:
            raise NotFound("There is no such conversation.", resource_id=conversation_id)
        window = self.windows[conversation_id]
        return None if window.version == if_version else window

    async def window_ids(self, conversation_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        known = (self.windows[id_] for id_ in conversation_ids if id_ in self.windows)
        return {window.conversation_id: tuple(message.id for message in window.messages) for window in known}

    async def commit_step(self, commit: StepCommit) -> CommitOutcome:
        content = tuple(replace(message, created_at=_NO_TIME) for message in commit.messages)
        if commit.step_id in self._commits:
            before, outcome = self._commits[commit.step_id]
            if before != content:
                raise StepConflict("The step was committed before with other content.", step_id=commit.step_id)
            return replace(outcome, replayed=True)
        window = self.windows[commit.conversation_id]
        if commit.epoch < window.epoch:
            raise LeaseLost("Another holder took the conversation over.", epoch=str(window.epoch))
        known = {message.id for message in window.messages}
        stored = [message for message in self._store(commit.agent_id, commit.messages) if message.id not in known]
        rebased = window.version != commit.base_version
        system, *rest = window.messages
        if commit.system_text is not None:
            system = self._said_anew(commit.agent_id, system, commit.system_text)
        messages = (system, *rest, *stored)
        moved = self._keep(replace(window, version=window.version + 1, epoch=commit.epoch, messages=messages))
        outcome = CommitOutcome(moved.version, moved.agent_message_count, window=moved if rebased else None)
        self._commits[commit.step_id] = (content, outcome)
        return outcome

    async def replace_context(
        self,
        request_id: str,
        agent_id: str,
        conversation_id: str,
        base_version: int,
        message_ids: Sequence[str],
        new_messages: Sequence[Message] = (),
        system_text: str | None = None,
        run_id: str | None = None,
        epoch: int | None = None,
        memories: Sequence[EpisodeCommit] = (),
    ) -> ContextWindow:
        def effect() -> ContextWindow:
            window = self.windows[conversation_id]
            if epoch is not None and epoch < window.epoch:
                raise LeaseLost("Another holder took the conversation over.", epoch=str(window.epoch))
            if base_version != window.version:
                raise WindowMoved("The window has changed.", version=str(window.version))
            self._episodes.keep(memories)
            self._store(agent_id, new_messages)
            rows = self._by_id(agent_id)
            messages = tuple(rows[message_id] for message_id in message_ids)
            if system_text is not None:
                messages = (self._said_anew(agent_id, messages[0], system_text), *messages[1:])
            moved = replace(window, version=window.version + 1, messages=messages, epoch=epoch or window.epoch)
            return self._keep(moved)

        content = (
            agent_id,
            base_version,
            tuple(message_ids),
            tuple(new_messages),
            system_text,
            run_id,
            epoch,
            tuple(memories),
        )
        self._once(request_id, content, effect)
        return self.windows[conversation_id]

    async def append(self, request_id: str, agent_id: str, messages: Sequence[Message]) -> None:
        self._once(request_id, tuple(messages), lambda: self._store(agent_id, messages))

    async def search(self, agent_id: str, query: str, **options: Any) -> tuple[MessageHit, ...]:
        found = [message for message in self.rows.get(agent_id, ()) if query.lower() in message.text.lower()]
        return tuple(MessageHit(message, message.text, 1.0) for message in found)

    async def erase_agent(self, request_id: str, agent_id: str) -> Erased:
        self.windows = {key: window for key, window in self.windows.items() if window.agent_id != agent_id}
        self.erased.append(agent_id)
        return Erased(messages=len(self.rows.pop(agent_id, ())))

    def _keep(self, window: ContextWindow) -> ContextWindow:
        """With the count of the agent's rows; also of its other windows a new count is a new answer, no new version."""
        window = replace(window, agent_message_count=len(self.rows[window.agent_id]))
        self.windows[window.conversation_id] = window
        return window

    def _store(self, agent_id: str, messages: Sequence[Message]) -> tuple[Message, ...]:
        rows, known = self.rows.setdefault(agent_id, []), self._by_id(agent_id)
        stored = []
        for message in messages:
            if message.id in known:
                if replace(known[message.id], created_at=_NO_TIME) != replace(message, created_at=_NO_TIME):
                    raise AlreadyExists("There is another message under this id.", resource_id=message.id)
                stored.append(known[message.id])
                continue
            stored.append(replace(message, sequence_id=len(rows) + 1))
            rows.append(stored[-1])
            known[message.id] = stored[-1]
        return tuple(stored)

    def _by_id(self, agent_id: str) -> dict[str, Message]:
        """The agent's rows by id; kept, so that a conversation of ten thousand costs no more with each message."""
        rows, known = self.rows.get(agent_id, []), self._known.get(agent_id)
        if known is None or len(known) != len(rows):
            known = self._known[agent_id] = {message.id: message for message in rows}
        return known

    def _said_anew(self, agent_id: str, system: Message, text: str) -> Message:
        changed = replace(system, content=(TextPart(text),))
        rows = self.rows[agent_id]
        rows[next(place for place, message in enumerate(rows) if message.id == system.id)] = changed
        self._by_id(agent_id)[system.id] = changed
        return changed


class Episodes:
    """Episodes and facts, by the rules of recall: closed facts stay, what is said again is confirmed."""

    def __init__(self, clock: FrozenClock) -> None:
        self._clock = clock
        self.commits: list[EpisodeCommit] = []
        self.episodes: dict[MemoryScope, list[Episode]] = {}
        self.facts: dict[MemoryScope, list[Fact]] = {}
        self.closed: dict[str, str] = {}
        """Facts that no longer hold, and which took their places."""
        self.ended: dict[str, datetime] = {}
        """Facts that held until some time when they were learned."""
        self.sources: dict[str, set[str]] = {}
        self.refuses: MnemeshError | None = None

    def texts(self, agent: str, name: str | None = None) -> list[str]:
        """What holds, as it was learned."""
        return [fact.text for fact in self._holding(_of(MemoryScope(agent, name)))]

    def add(self, agent: str, text: str, salience: float = 0.5) -> Fact:
        """A fact that is known from before."""
        return self._add(MemoryScope(agent), text, (), salience, None, set())

    async def bundle(self, scope: MemoryScope, max_episodes: int, max_facts: int) -> MemoryBundle:
        facts = sorted(self._holding(_of(scope)), key=lambda fact: (fact.salience, fact.created_at), reverse=True)
        newest = self.episodes.get(_of(scope), [])[-max_episodes:]
        return MemoryBundle(tuple(newest), tuple(facts[:max_facts]))

    async def search(
        self, scopes: Sequence[MemoryScope], query: str, *, limit: int, held_at: datetime | None = None
    ) -> MemoryHits:
        within = [_of(scope) for scope in scopes]
        words = set(query.lower().split())
        held = [fact for scope in within for fact in self._holding(scope) if words & set(fact.text.lower().split())]
        looked_back = [
            episode
            for scope in within
            for episode in self.episodes.get(scope, ())
            if words & set(episode.summary.lower().split())
        ]
        return MemoryHits(tuple(held[:limit]), tuple(looked_back[:limit]))

    def keep(self, commits: Sequence[EpisodeCommit]) -> None:
        """All of them, or none."""
        if self.refuses is not None and commits:
            raise self.refuses
        for change in (change for commit in commits for change in commit.changes):
            if change.fact_id in self.closed:
                raise _refused("FACT_CLOSED", fact_id=change.fact_id or "")
        for commit in commits:
            self._keep(_of(commit.scope), commit)

    def _keep(self, scope: MemoryScope, commit: EpisodeCommit) -> None:
        made = commit.episode
        self.commits.append(commit)
        kept = self.episodes.setdefault(scope, [])
        number = sum(map(len, self.episodes.values())) + 1
        kept.append(Episode(f"episode-{number:04d}", made.summary, self._clock.now(), made.tags, made.salience))
        for change in commit.changes:
            sources = set(change.message_ids)
            same = next((f for f in self._holding(scope) if f.text.casefold() == change.text.casefold()), None)
            if change.change is Change.CONFIRM or (change.change is Change.ADD and same is not None):
                self.sources[change.fact_id or (same.id if same else "")] |= sources
                continue
            fact = self._add(scope, change.text, change.tags, change.salience, change.told_at, sources)
            if change.ended_at is not None:
                self.ended[fact.id] = change.ended_at
            if change.change is Change.SUPERSEDE and change.fact_id is not None:
                self.closed[change.fact_id] = fact.id

    def _add(
        self,
        scope: MemoryScope,
        text: str,
        tags: tuple[str, ...],
        salience: float,
        since: datetime | None,
        sources: set[str],
    ) -> Fact:
        number = sum(map(len, self.facts.values())) + 1
        fact = Fact(f"fact-{number:04d}", text, self._clock.now(), tags, salience, since)
        self.facts.setdefault(scope, []).append(fact)
        self.sources[fact.id] = sources
        return fact

    def _holding(self, scope: MemoryScope) -> list[Fact]:
        return [fact for fact in self.facts.get(scope, []) if fact.id not in self.closed.keys() | self.ended.keys()]


def _of(scope: MemoryScope) -> MemoryScope:
    """A named scope is the same for whichever agent names it."""
    return scope if scope.name is None else MemoryScope("", scope.name)


class Archival:
    """Passages."""

    def __init__(self, clock: FrozenClock) -> None:
        self._clock = clock
        self._once = Once()
        self.passages: dict[str, list[PassageHit]] = {}
        self.attached: list[tuple[str, str]] = []
        self.erased: list[str] = []

    def texts(self, agent_id: str) -> list[str]:
        return [passage.text for passage in self.passages.get(agent_id, ())]

    async def insert(self, request_id: str, agent_id: str, text: str, tags: Sequence[str] = ()) -> str:
        def effect() -> str:
            passage = PassageHit(derive_id("passage", request_id), text, tuple(tags), self._clock.now(), 1.0)
            self.passages.setdefault(agent_id, []).append(passage)
            return passage.id

        return self._once(request_id, (agent_id, text, tuple(tags)), effect)  # type: ignore[no-any-return]

    async def search(self, agent_id: str, query: str, **options: Any) -> tuple[PassageHit, ...]:
        return tuple(hit for hit in self.passages.get(agent_id, ()) if query.lower() in hit.text.lower())

    async def summary(self, agent_id: str, if_revision: int | None = None) -> ArchivalSummary | None:
        passages = self.passages.get(agent_id, [])
        tags = tuple(sorted({tag for passage in passages for tag in passage.tags}))
        return None if if_revision == len(passages) else ArchivalSummary(len(passages), len(passages), tags)

    async def attach(self, request_id: str, agent_id: str, archive_id: str) -> None:
        self.attached.append((agent_id, archive_id))

    async def erase_agent(self, request_id: str, agent_id: str) -> Erased:
        self.erased.append(agent_id)
        return Erased(passages=len(self.passages.pop(agent_id, ())))


Run = Callable[[Mapping[str, Any], Mapping[str, str]], tuple[ToolResult, Mapping[str, str]]]


@dataclass
class Tools:
    """Custom tools, each a function of its arguments and the agent's blocks."""

    stored: dict[str, CustomTool] = field(default_factory=dict)
    functions: dict[str, Run] = field(default_factory=dict)
    executed: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def add(self, name: str, run: Run | str = "done", **properties: Any) -> CustomTool:
        parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": []}
        schema = {"name": name, "description": f"Does {name}.", "parameters": parameters}
        tool = CustomTool(derive_id("tool", name), name, json.dumps(schema), **properties)
        self.stored[tool.id] = tool
        self.functions[tool.id] = (lambda *_: (ToolResult(ok=True, text=run), {})) if isinstance(run, str) else run
        return tool

    async def definitions(self, ids: Sequence[str] = (), names: Sequence[str] = ()) -> tuple[CustomTool, ...]:
        return tuple(tool for tool in self.stored.values() if tool.id in ids or tool.name in names)

    async def upsert_source(self, request_id: str, source_code: str) -> CustomTool:
        return self.add(source_code.partition("def ")[2].partition("(")[0])

    async def execute(
        self,
        tool_id: str,
        arguments: str,
        *,
        agent_id: str,
        agent_name: str,
        blocks: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> tuple[ToolResult, Mapping[str, str]]:
        given = json.loads(arguments)
        self.executed.append((self.stored[tool_id].name, given))
        return self.functions[tool_id](given, blocks)
