"""Chat: sends what is new in a request, and answers with the events of its run."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.time import Clock

from mnemesh_gateway.clients.runs import RunsClient
from mnemesh_gateway.errors import ApprovalMismatch, InvalidRequest, NoPendingApproval, OtidReused, PendingApproval
from mnemesh_gateway.model.chat import Caller, ChatRequest, Delta, Text
from mnemesh_gateway.model.models import AgentInfo
from mnemesh_gateway.model.runs import (
    Accepted,
    AnswerEvent,
    Begun,
    Input,
    RunEvent,
    RunOptions,
    RunRecord,
    Waiting,
    otid_of,
)
from mnemesh_gateway.model.sessions import client_session, derived_session, preface
from mnemesh_gateway.usecases.agents import AgentService, Cache
from mnemesh_gateway.usecases.answering import answer_events, require_client_tools
from mnemesh_gateway.usecases.sessions import SECONDS, Session, SessionService

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


def renamed(error: InvalidArgument, inputs: Sequence[Input], options: RunOptions) -> InvalidArgument:
    """Returns an error of the mesh with the name of the field in the client's request.

    Args:
        error: The error.
        inputs: The messages that were sent.
        options: The options that were sent.
    """
    field = error.field
    name = None if field is None else _name(field, inputs, options)
    if field is None or name is None:
        return error
    return InvalidRequest(error.message.replace(field, name), name)


def _name(field: str, inputs: Sequence[Input], options: RunOptions) -> str | None:
    if message := _MESSAGE.fullmatch(field):
        index = int(message[1])
        path = inputs[index].path if index < len(inputs) else ""
        return f"{path}.{message[2]}" if path and message[2] else path or None
    if tool := _TOOL.fullmatch(field):
        index = int(tool[1])
        return options.tools[index].path + tool[2] if index < len(options.tools) else "tools"
    for prefix, name in _RENAMED.items():
        if field == prefix or field.startswith((f"{prefix}.", f"{prefix}[")):
            return (name + field.removeprefix(prefix)).removeprefix(".")
    return None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that has begun."""

    agent: AgentInfo
    begun: Begun | None
    """None if the request had nothing new: there is no run, and no events."""
    events: AsyncGenerator[AnswerEvent, None]
    created_at: datetime
    session: Session | None = None

    def mark_delivered(self) -> None:
        """Notes that the client has got the whole answer: what it sends next is new."""
        if self.session is not None and self.begun is not None:
            self.session.delivered.append(self.begun.run_id)


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
            return Answer(agent, None, _nothing(), self._clock.now())
        try:
            begun, events = await self._begin(client, session, request)
        except NotFound:
            # The conversation may have been deleted since this process found it. The client's id names a new one.
            self._sessions.forget(caller, session)
            session = await self._session(caller, client, agent, request)
            begun, events = await self._begin(client, session, request)
        self._remember(caller, agent, session, request)
        session.has_preface = session.fallback is not None and (session.has_preface or bool(request.delta.inputs))
        return Answer(agent, begun, events, self._clock.now(), session)

    async def _begin(
        self, client: Caller, session: Session, request: ChatRequest
    ) -> tuple[Begun, AsyncGenerator[AnswerEvent, None]]:
        """Stores the run of a request. Returns its first event, and the others."""
        events = answer_events(self._run(client, session, request), {tool.name for tool in request.tools})
        begun = await anext(events)
        assert isinstance(begun, Begun), "a run begins with its id"  # noqa: S101
        return begun, events

    async def _session(self, caller: Principal, client: Caller, agent: AgentInfo, request: ChatRequest) -> Session:
        conversation_id, instructions = client.conversation_id, request.instructions
        if client.previous_run_id is not None:
            conversation_id = (await self._runs.get(client.previous_run_id)).conversation_id
        if conversation_id is not None:
            return await self._sessions.continued(caller, agent, conversation_id, instructions)
        name = client_session(client.headers, request.metadata)
        if name is None:
            name = derived_session(request.user, instructions)
            known = await self._known(caller, agent, request, name)
            if known is not None and known.startswith(_CONVERSATION):
                return await self._sessions.continued(caller, agent, known.removeprefix(_CONVERSATION), instructions)
            name = known or name
        return await self._sessions.open(caller, agent, name, instructions)

    async def _known(self, caller: Principal, agent: AgentInfo, request: ChatRequest, name: str | None) -> str | None:
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
                names |= await self._searched(agent, request, position)
                self._histories.put(key, names)
            if names:
                return name if name in names or len(names) > 1 else next(iter(names))
        return None

    async def _searched(self, agent: AgentInfo, request: ChatRequest, position: str) -> frozenset[str]:
        """Returns the sessions of the agent's newest runs that began with a message at this position."""
        found = set()
        async with aclosing(self._runs.recent_of(agent.id, _RECENT)) as runs:
            async for run in runs:
                if position in _sent_by(run).positions and run.metadata.get("user") == request.user:
                    found.add(_sent_by(run).session or f"{_CONVERSATION}{run.conversation_id}")
        return frozenset(found)

    def _remember(self, caller: Principal, agent: AgentInfo, session: Session, request: ChatRequest) -> None:
        for item in request.delta.inputs:
            key = _history_key(caller, agent, request, item.position)
            self._histories.put(key, (self._histories.get(key) or frozenset()) | {session.name})

    async def _run(self, client: Caller, session: Session, request: ChatRequest) -> AsyncIterator[RunEvent]:
        """Yields the events of the run that answers a request."""
        inputs, options = await self._prepared(client, session, request)
        if request.delta.tool_results:
            source = self._answered(session, request.delta, inputs, options)
        else:
            source = self._sent(session, inputs, options)
        async with aclosing(self._settled(source)) as events:
            async for event in events:
                yield event

    async def _prepared(
        self, client: Caller, session: Session, request: ChatRequest
    ) -> tuple[tuple[Input, ...], RunOptions]:
        delta, positions = request.delta, [item.position for item in request.delta.inputs]
        anchor = await self._anchor(client, session, delta, positions)
        inputs = [
            Input(item.content, otid_of(session.conversation_id, anchor, item.position), item.name, item.path)
            for item in delta.inputs
        ]
        if session.fallback is not None and not session.has_preface and inputs:
            otid = otid_of(session.conversation_id, "overlay", session.fallback.sha256)
            inputs.insert(0, Input((Text(preface(session.fallback)),), otid))
        noted = {"anchor": anchor, "positions": positions, "session": session.name}
        metadata: dict[str, Any] = {"gateway": noted}
        metadata |= {"user": request.user} if request.user is not None else {}
        metadata |= {"client": dict(request.metadata)} if request.metadata else {}
        return tuple(inputs), RunOptions(
            tools=request.tools,
            choice=request.choice,
            settings=request.settings,
            parameters=request.parameters,
            format=request.format,
            stream_tokens=request.stream,
            metadata=metadata,
        )

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
        newest = await self._runs.newest(session.conversation_id)
        if newest is None:
            return "first"
        sent = _sent_by(newest)
        if sent.positions and positions[: len(sent.positions)] == sent.positions:
            is_longer = len(positions) > len(sent.positions)
            if is_longer or client.is_retry or self._may_repeat(session, newest):
                return sent.anchor
        elif client.is_retry:
            # Another client of the session may have started runs since the first attempt.
            async with aclosing(self._runs.recent(session.conversation_id, _RECENT)) as runs:
                async for run in runs:
                    sent = _sent_by(run)
                    if sent.positions == positions and self._may_repeat(session, run):
                        return sent.anchor
        return newest.id

    def _may_repeat(self, session: Session, run: RunRecord) -> bool:
        """Returns whether the same words are a repeat: the answer may not have arrived, or its calls wait."""
        if not run.is_ended:
            return True
        if run.ended_at is None or (run.id in session.delivered and not run.is_waiting):
            return False
        return self._clock.now() - run.ended_at < timedelta(seconds=REPEAT_SECONDS)

    async def _sent(
        self, session: Session, inputs: tuple[Input, ...], options: RunOptions
    ) -> AsyncGenerator[RunEvent, None]:
        """Yields the events of the run with these inputs, without those that were sent before."""
        known_run_id, has_withdrawn = "", False
        while inputs:
            try:
                stream = self._runs.send(session.agent_id, session.conversation_id, inputs, options)
                async for event in stream:
                    yield event
                return
            except OtidReused as error:
                known_run_id = error.metadata.get("run_id", "")
                known = (await self._runs.get(known_run_id)).otids if known_run_id else ()
                rest = tuple(item for item in inputs if item.otid not in known)
                if len(rest) == len(inputs):
                    raise
                inputs = rest
            except InvalidArgument as error:
                raise renamed(error, inputs, options) from error
            except PendingApproval:
                if has_withdrawn:
                    raise
                await self._withdraw_calls(session)
                has_withdrawn = True
        async for event in self._runs.follow(known_run_id):
            yield Accepted(event.run_id, replayed=True) if isinstance(event, Accepted) else event

    async def _withdraw_calls(self, session: Session) -> None:
        """Ends the wait for the client's tools, whose results do not come: the calls get an error.

        Raises:
            ApprovalRequired: A person decides about the calls.
        """
        waiting = await self._runs.newest(session.conversation_id)
        if waiting is not None:
            if not waiting.is_ended:
                return  # a parallel request has withdrawn them and begun a run, which must not be cancelled
            async for event in self._runs.follow(waiting.id):
                if isinstance(event, Waiting):
                    require_client_tools(event.calls, waiting.client_tools)
        _log.info("calls_withdrawn", conversation_id=session.conversation_id)
        await self._runs.cancel(session.conversation_id)

    async def _answered(
        self, session: Session, delta: Delta, inputs: tuple[Input, ...], options: RunOptions
    ) -> AsyncGenerator[RunEvent, None]:
        """Yields the events of the run that continues with the results of the client's tools."""
        stream = self._runs.answer(session.agent_id, session.conversation_id, delta.tool_results, inputs, options)
        try:
            async for event in stream:
                if isinstance(event, Accepted) and event.replayed and inputs and await self._lacks(event, inputs):
                    break
                yield event
            else:
                return
        except ApprovalMismatch as error:
            raise InvalidRequest(
                f"The results do not match the calls that wait: {error.message}", "messages", "tool_results_mismatch"
            ) from error
        except InvalidArgument as error:
            raise renamed(error, inputs, options) from error
        except NoPendingApproval as error:
            if not inputs:
                raise InvalidRequest(
                    "No call waits for these results. They may have been answered, or withdrawn by a later message.",
                    "messages",
                    "tool_results_not_expected",
                ) from error
            _log.info("late_results_left_out", conversation_id=session.conversation_id)
        async for event in self._sent(session, inputs, options):
            yield event

    async def _lacks(self, accepted: Accepted, inputs: tuple[Input, ...]) -> bool:
        """Returns whether the results were sent before without these messages of the user."""
        known = (await self._runs.get(accepted.run_id)).otids
        return not all(item.otid in known for item in inputs)

    async def _settled(self, source: AsyncGenerator[RunEvent, None]) -> AsyncGenerator[RunEvent, None]:
        """Yields the events of a run; of a retry, if an earlier request started the run and it failed."""
        async with aclosing(source):
            async for event in source:
                if isinstance(event, Accepted) and event.replayed:
                    run = await self._runs.get(event.run_id)
                    if run.has_failed:
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


def _sent_by(run: RunRecord) -> _Sent:
    noted = run.metadata.get("gateway")
    if not isinstance(noted, Mapping) or not isinstance(noted.get("positions"), list):
        return _Sent()
    return _Sent(str(noted.get("anchor", "")), noted["positions"], str(noted.get("session", "")))


def _history_key(caller: Principal, agent: AgentInfo, request: ChatRequest, position: str) -> tuple[str, ...]:
    return caller.organization_id, agent.id, request.user or "", position


async def _nothing() -> AsyncGenerator[AnswerEvent, None]:
    nothing: tuple[AnswerEvent, ...] = ()
    for event in nothing:
        yield event
