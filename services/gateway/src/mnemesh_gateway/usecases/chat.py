"""Chat: sends what is new in a request, and answers with the parts of its run."""

import hashlib
import re
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import structlog
from mnemesh.agents.v1.agents_pb2 import STOP_REASON_REQUIRES_APPROVAL, Agent
from mnemesh.agents.v1.runs_pb2 import InputMessage, Run, RunConfig
from mnemesh.agents.v1.runs_service_pb2 import RunFilter
from mnemesh.types.v1.message_pb2 import ROLE_USER, ApprovalDecision, ContentPart, TextPart
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.time import Clock, timestamp_from_proto

from mnemesh_gateway.errors import ApprovalMismatch, InvalidRequest, NoPendingApproval, OtidReused, PendingApproval
from mnemesh_gateway.usecases.agents import AgentService, Cache
from mnemesh_gateway.usecases.answering import (
    Events,
    Part,
    RunsClient,
    begin_answer,
    config_of,
    has_ended,
    has_failed,
    is_replay,
    metadata_of,
    require_client_tools,
    waiting_calls,
)
from mnemesh_gateway.usecases.sessions import SECONDS, Session, SessionService, client_session, derived_session, preface

_MESSAGE: Final = re.compile(r"messages\[(\d+)\](?:\.(\w+).*)?")
_TOOL: Final = re.compile(r"config\.client_tools\[(\d+)\](.*)")
_RENAMED: Final = {
    "config.client_tools": "tools",
    "config.response_format": "response_format",
    "config.model_settings.max_output_tokens": "max_tokens",
    "config.model_settings": "",
    "config.metadata": "metadata",
}

REPEAT_SECONDS: Final = 600.0
"""The time after a turn in which the same request without history is a repeat, if its answer may not have arrived."""

_RECENT: Final = 10
"""Among how many runs the one is searched that an SDK's retry repeats, or to which a history belongs."""
_HISTORIES: Final = 10_000
_CONVERSATION: Final = "conversation/"

_log = structlog.get_logger("mnemesh.chat")


@dataclass(frozen=True, slots=True)
class UserInput:
    """A message of the user that is new.

    `position` is a hash of the client's messages up to and including this one, so that the same message at the same
    point of the same history is recognised.
    """

    content: tuple[ContentPart, ...]
    position: str
    name: str | None = None
    path: str = ""
    """Its path in the request, such as `messages[3]`."""


@dataclass(frozen=True, slots=True)
class Delta:
    """The new part of a request: the results of tool calls, then messages of the user."""

    tool_results: tuple[ApprovalDecision, ...] = ()
    inputs: tuple[UserInput, ...] = ()
    has_history: bool = False
    """An answer of the assistant precedes the new messages, so that their position is unique."""
    earlier: tuple[str, ...] = ()
    """The positions of the user's messages before the last answer, the newest first."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to send."""
        return not self.tool_results and not self.inputs


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for an answer of an agent."""

    model: str
    """The id or the name of the agent."""
    instructions: str | None
    """The texts of the system and developer messages, or None if there are none."""
    delta: Delta
    config: RunConfig
    """The client's tools, and the settings of the run that the request has."""
    tool_paths: tuple[str, ...] = ()
    """The paths of the tools in the request, such as `tools[0].function`."""
    ignored: tuple[str, ...] = ()
    """The parameters that have no effect."""
    user: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    include_usage: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """The client's session, as the headers of a request name it."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers that may name a session, by their names in lower case."""
    is_retry: bool = False
    """The client says that it sends the request again."""
    idempotency_key: str | None = None
    previous_run_id: str | None = None
    """The run whose conversation the request continues."""
    conversation_id: str | None = None
    """The conversation that the request continues."""
    task: str | None = None
    """The front end's own task, such as a title, that the request is for."""


class _Prepared(NamedTuple):
    """What a request sends: its messages with their paths in it by otid, and the configuration of the run."""

    messages: list[InputMessage]
    paths: Mapping[str, str]
    config: RunConfig
    tool_paths: Sequence[str]

    def without(self, otids: Collection[str]) -> "_Prepared":
        """Returns the same without some messages."""
        return self._replace(messages=[message for message in self.messages if message.otid not in otids])

    def renamed(self, error: InvalidArgument) -> InvalidArgument:
        """Returns an error of the mesh with the name of the field in the client's request."""
        name = None if error.field is None else self._name(error.field)
        return (
            error
            if error.field is None or name is None
            else InvalidRequest(error.message.replace(error.field, name), name)
        )

    def _name(self, field: str) -> str | None:
        if message := _MESSAGE.fullmatch(field):
            index = int(message[1])
            path = self.paths.get(self.messages[index].otid, "") if index < len(self.messages) else ""
            return f"{path}.{message[2]}" if path and message[2] else path or None
        if tool := _TOOL.fullmatch(field):
            index = int(tool[1])
            return self.tool_paths[index] + tool[2] if index < len(self.tool_paths) else "tools"
        for prefix, name in _RENAMED.items():
            if field == prefix or field.startswith((f"{prefix}.", f"{prefix}[")):
                return (name + field.removeprefix(prefix)).removeprefix(".")
        return None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that has begun."""

    agent: Agent
    run_id: str | None
    """None if the request had nothing new: there is no run, and no parts."""
    parts: AsyncGenerator[Part, None]
    created_at: datetime
    session: Session | None = None

    def mark_delivered(self) -> None:
        """Notes that the client has got the whole answer: what it sends next is new."""
        if self.session is not None and self.run_id is not None:
            self.session.delivered.append(self.run_id)


class ChatService:
    """Answers chat requests."""

    def __init__(self, agents: AgentService, sessions: SessionService, runs: RunsClient, clock: Clock) -> None:
        self._agents = agents
        self._sessions = sessions
        self._runs = runs
        self._clock = clock
        self._histories: Cache[tuple[str, ...], frozenset[str]] = Cache(_HISTORIES, SECONDS, clock)

    async def open(self, caller: Principal, client: Caller, request: ChatRequest) -> Answer:
        """Stores the run of a request and returns its answer. The run continues if the answer is not read.

        Raises:
            UnknownAgent, InvalidRequest: The request is wrong.
            MnemeshError: The run could not be stored.
        """
        agent = await self._agents.find(caller, request.model)
        session = await self._session(caller, client, agent, request)
        if request.delta.is_empty:
            return Answer(agent, None, _yield_nothing(), self._clock.now())
        try:
            run_id, parts = await self._begin(client, session, request)
        except NotFound:
            # The conversation may have been deleted since this process found it. The client's id names a new one.
            self._sessions.forget(caller, session)
            session = await self._session(caller, client, agent, request)
            run_id, parts = await self._begin(client, session, request)
        self._remember(caller, agent, session, request)
        session.has_preface = session.fallback is not None and (session.has_preface or bool(request.delta.inputs))
        return Answer(agent, run_id, parts, self._clock.now(), session)

    async def _begin(
        self, client: Caller, session: Session, request: ChatRequest
    ) -> tuple[str, AsyncGenerator[Part, None]]:
        """Stores the run of a request. Returns its id, and its answer."""
        tools = {tool.name for tool in request.config.client_tools}
        return await begin_answer(self._run(client, session, request), tools)

    async def _session(self, caller: Principal, client: Caller, agent: Agent, request: ChatRequest) -> Session:
        conversation_id, instructions = client.conversation_id, request.instructions
        if client.previous_run_id is not None:
            conversation_id = (await self._runs.get(client.previous_run_id)).conversation_id
        if conversation_id is not None:
            return await self._sessions.resume(caller, agent, conversation_id, instructions)
        name = client_session(client.headers, request.metadata)
        if name is None:
            name = derived_session(request.user, instructions)
            known = await self._find_known(caller, agent, request, name)
            if known is not None and known.startswith(_CONVERSATION):
                return await self._sessions.resume(caller, agent, known.removeprefix(_CONVERSATION), instructions)
            name = known or name
        return await self._sessions.open(caller, agent, name, instructions)

    async def _find_known(self, caller: Principal, agent: Agent, request: ChatRequest, name: str | None) -> str | None:
        """Returns the name of the session to which the client's history belongs; None if that is not known.

        The messages of several sessions can begin with the same words. `name` is preferred then; without it, among
        several none is chosen.
        """
        if request.instructions is None:
            return None  # without an overlay, the session does not depend on a text that changes
        for position in request.delta.earlier:
            key = _history_key(caller, agent, request, position)
            names = self._histories.get(key) or frozenset()
            if name not in names:
                # Another replica may know other sessions that began with the same words.
                names |= await self._search(agent, request, position)
                self._histories.put(key, names)
            if names:
                return name if name in names or len(names) > 1 else next(iter(names))
        return None

    async def _search(self, agent: Agent, request: ChatRequest, position: str) -> frozenset[str]:
        """Returns the sessions of the agent's newest runs that began with a message at this position."""
        found = set()
        async with aclosing(self._runs.recent(RunFilter(agent_ids=[agent.id]), _RECENT)) as runs:
            async for run in runs:
                sent = _sent_by(run)
                if position in sent.positions and metadata_of(run).get("user") == request.user:
                    found.add(sent.session or f"{_CONVERSATION}{run.conversation_id}")
        return frozenset(found)

    def _remember(self, caller: Principal, agent: Agent, session: Session, request: ChatRequest) -> None:
        for item in request.delta.inputs:
            key = _history_key(caller, agent, request, item.position)
            self._histories.put(key, (self._histories.get(key) or frozenset()) | {session.name})

    async def _run(self, client: Caller, session: Session, request: ChatRequest) -> Events:
        """Yields the events of the run that answers a request."""
        prepared = await self._prepare(client, session, request)
        if request.delta.tool_results:
            source = self._answer(session, request.delta, prepared)
        else:
            source = self._send(session, prepared)
        async with aclosing(self._settle(source)) as events:
            async for event in events:
                yield event

    async def _prepare(self, client: Caller, session: Session, request: ChatRequest) -> _Prepared:
        delta, positions = request.delta, [item.position for item in request.delta.inputs]
        anchor = await self._anchor(client, session, delta, positions)
        paths = {otid_of(session.conversation_id, anchor, item.position): item.path for item in delta.inputs}
        messages = [
            InputMessage(role=ROLE_USER, content=item.content, otid=otid, name=item.name)
            for otid, item in zip(paths, delta.inputs, strict=True)
        ]
        if session.fallback is not None and not session.has_preface and messages:
            otid = otid_of(session.conversation_id, "overlay", session.fallback.sha256)
            shown = ContentPart(text=TextPart(text=preface(session.fallback)))
            messages.insert(0, InputMessage(role=ROLE_USER, content=[shown], otid=otid))
        noted = {"anchor": anchor, "positions": positions, "session": session.name}
        metadata: dict[str, Any] = {"gateway": noted}
        metadata |= {"user": request.user} if request.user is not None else {}
        metadata |= {"client": dict(request.metadata)} if request.metadata else {}
        return _Prepared(messages, paths, config_of(request.config, metadata), request.tool_paths)

    async def _anchor(self, client: Caller, session: Session, delta: Delta, positions: list[str]) -> str:
        """Returns what identifies the messages besides the client's history.

        With an answer in the history, nothing: the history is unique. Otherwise the newest run before the request, so
        that the same words can be said again; the anchor of the newest run itself if the request repeats it.
        """
        if client.idempotency_key is not None:
            return f"key/{client.idempotency_key}"
        if client.previous_run_id is not None:
            return f"after/{client.previous_run_id}"
        if delta.has_history or not positions:
            return ""
        newest = await self._runs.newest(session.agent_id, session.conversation_id)
        if newest is None:
            return "first"
        sent = _sent_by(newest)
        if sent.positions and positions[: len(sent.positions)] == sent.positions:
            is_longer = len(positions) > len(sent.positions)
            if is_longer or client.is_retry or self._may_repeat(session, newest):
                return sent.anchor
        elif client.is_retry:
            # Another client of the session may have started runs since the first attempt.
            filter_ = RunFilter(agent_ids=[session.agent_id], conversation_id=session.conversation_id)
            async with aclosing(self._runs.recent(filter_, _RECENT)) as runs:
                async for run in runs:
                    sent = _sent_by(run)
                    if sent.positions == positions and self._may_repeat(session, run):
                        return sent.anchor
        return newest.id

    def _may_repeat(self, session: Session, run: Run) -> bool:
        """Returns whether the same words are a repeat: the answer may not have arrived, or its calls wait."""
        if not has_ended(run):
            return True
        is_waiting = run.stop_reason == STOP_REASON_REQUIRES_APPROVAL
        if not run.HasField("completion_time") or (run.id in session.delivered and not is_waiting):
            return False
        ended_at = timestamp_from_proto(run.completion_time, "completion_time")
        return self._clock.now() - ended_at < timedelta(seconds=REPEAT_SECONDS)

    async def _send(self, session: Session, prepared: _Prepared) -> Events:
        """Yields the events of the run with these messages, without those that were sent before."""
        known_run_id, has_withdrawn = "", False
        while prepared.messages:
            try:
                async for event in self._runs.send(
                    session.agent_id, session.conversation_id, prepared.messages, prepared.config
                ):
                    yield event
                return
            except OtidReused as error:
                known_run_id = error.metadata.get("run_id", "")
                known = await self._otids(known_run_id) if known_run_id else frozenset()
                rest = prepared.without(known)
                if len(rest.messages) == len(prepared.messages):
                    raise
                prepared = rest
            except InvalidArgument as error:
                raise prepared.renamed(error) from error
            except PendingApproval:
                if has_withdrawn:
                    raise
                await self._withdraw_calls(session)
                has_withdrawn = True
        async for event in self._runs.follow(known_run_id):
            if event.HasField("accepted"):
                event.accepted.replayed = True
            yield event

    async def _otids(self, run_id: str) -> frozenset[str]:
        """Returns the client's ids of the messages of a run."""
        return frozenset(item.otid for item in (await self._runs.get(run_id)).input if item.HasField("otid"))

    async def _withdraw_calls(self, session: Session) -> None:
        """Ends the wait for the client's tools, whose results do not come: the calls get an error.

        Raises:
            ApprovalRequired: a person decides about the calls.
        """
        waiting = await self._runs.newest(session.agent_id, session.conversation_id)
        if waiting is not None:
            if not has_ended(waiting):
                return  # a parallel request has withdrawn them and begun a run, which must not be cancelled
            tools = {tool.name for tool in waiting.config.client_tools}
            async for event in self._runs.follow(waiting.id):
                require_client_tools(waiting_calls(event), tools)
        _log.info("calls_withdrawn", conversation_id=session.conversation_id)
        await self._runs.cancel(session.conversation_id)

    async def _answer(self, session: Session, delta: Delta, prepared: _Prepared) -> Events:
        """Yields the events of the run that continues with the results of the client's tools."""
        messages = prepared.messages
        stream = self._runs.answer(
            session.agent_id, session.conversation_id, delta.tool_results, messages, prepared.config
        )
        try:
            async for event in stream:
                if messages and is_replay(event):
                    # The results may have been sent before without these messages of the user.
                    known = await self._otids(event.run_id)
                    if not all(message.otid in known for message in messages):
                        break
                yield event
            else:
                return
        except ApprovalMismatch as error:
            raise InvalidRequest(
                f"The results do not match the calls that wait: {error.message}", "messages", "tool_results_mismatch"
            ) from error
        except InvalidArgument as error:
            raise prepared.renamed(error) from error
        except NoPendingApproval as error:
            if not messages:
                raise InvalidRequest(
                    "No call waits for these results. They may have been answered, or withdrawn by a later message.",
                    "messages",
                    "tool_results_not_expected",
                ) from error
            _log.info("late_results_left_out", conversation_id=session.conversation_id)
        async for event in self._send(session, prepared):
            yield event

    async def _settle(self, source: Events) -> Events:
        """Yields the events of a run; of a retry, if an earlier request started the run and it failed."""
        async with aclosing(source):
            async for event in source:
                if is_replay(event) and has_failed(run := await self._runs.get(event.run_id)):
                    break
                yield event
            else:
                return
        async for event in self._runs.follow(await self._runs.retry(run.id)):
            yield event


@dataclass(frozen=True, slots=True)
class _Sent:
    """The notes of the gateway about the messages of a run: their positions, and what identifies them besides."""

    anchor: str = ""
    positions: list[str] = field(default_factory=list)
    session: str = ""


def _sent_by(run: Run) -> _Sent:
    noted = metadata_of(run).get("gateway")
    if not isinstance(noted, Mapping) or not isinstance(noted.get("positions"), list):
        return _Sent()
    return _Sent(str(noted.get("anchor", "")), noted["positions"], str(noted.get("session", "")))


def _history_key(caller: Principal, agent: Agent, request: ChatRequest, position: str) -> tuple[str, ...]:
    return caller.organization_id, agent.id, request.user or "", position


async def _yield_nothing() -> AsyncGenerator[Part, None]:
    nothing: tuple[Part, ...] = ()
    for part in nothing:
        yield part


def otid_of(conversation_id: str, anchor: str, position: str) -> str:
    """Returns the id of a message at a position of the client's history.

    Args:
        conversation_id: the conversation.
        anchor: what precedes the message besides the client's history; "" if the history suffices.
        position: the hash of the client's messages up to this one.
    """
    digest = hashlib.sha256(f"{conversation_id}\x1f{anchor}\x1f{position}".encode()).hexdigest()
    return f"gateway-{digest[:40]}"
