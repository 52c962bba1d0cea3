"""Tasks of front ends, such as titles and suggested questions: they are no part of a conversation.

They are answered by the agent's language model, without the agent's memory.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import grpc
import structlog
from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1.agents_service_pb2_grpc import AgentServiceStub
from mnemesh.types.v1 import paging_pb2
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import Aborted, MnemeshError, NotFound
from mnemesh_kit.time import Clock, timestamp_from_proto

from mnemesh_gateway.usecases.agents import AgentService, Cache
from mnemesh_gateway.usecases.answering import READ, WRITE, Part, RunsClient, begin_answer, config_of
from mnemesh_gateway.usecases.chat import Answer

_TAG: Final = "gateway-task"
_PROMPT: Final = "Carry out the task. Answer with its result only."
_ABANDONED: Final = timedelta(minutes=30)
"""The age of an agent whose task ended without its deletion, because a process was killed."""
_MAX_MESSAGES: Final = 100
_SWEEP_SECONDS: Final = 3600.0
_ORGANIZATIONS: Final = 1_000
_log = structlog.get_logger("mnemesh.tasks")
_EDGE: Final = 600
"""The characters at the beginning and at the end of a text in which a task is recognised."""
_OPEN_WEBUI: Final = re.compile(r"\A\s*### Task:\s.*(<chat_history>|### Chat History:)", re.DOTALL)
"""Questions about documents begin with `### Task:` as well, but they have no chat history: they are messages."""
_MESSAGES: Final = re.compile(
    r"\A\s*(?:"
    r"### Task:\s+You are an autocompletion system\b"
    r"|You have been provided with a set of responses from various models to the latest user query\b"
    r"|Your task is to reflect the speaker's likely facial expression through a fitting emoji\b"
    r"|Summarize the discussion briefly in \d+ words or less to use as a prompt for future context\b"
    r")",
    re.IGNORECASE,
)
"""The beginnings of messages that front ends write: completion of what is typed, the answers of several models joined,
an emoji for a message, a summary for later."""
_TOOL_PROMPT: Final = re.compile(
    r"\A\s*Available Tools:.*\bYour task is to choose and return the correct tool\(s\) from the list", re.DOTALL
)
"""Instructions that ask for tool calls as text. Their message is the query, as `Query: …`."""
_QUERY: Final = re.compile(r"\s*(Query|History)\s*:")
_INSTRUCTIONS: Final = re.compile(
    r"\A\s*You are (?:a|an) (?:summarization AI\. Summarize the user's request into a single short sentence"
    r"|(?:AI )?(?:conversation |chat |thread )?titles? (?:generator|assistant))\b",
    re.IGNORECASE,
)
"""Instructions whose whole purpose is a title, whatever the message is."""
_TITLES: Final = (
    re.compile(r"\banaly[sz]e (this|the) conversation and provide\b[\s\S]{0,200}\btitle\b", re.IGNORECASE),
    re.compile(r"\breply with a title for the (chat|conversation)\b", re.IGNORECASE),
    re.compile(r"\bsummari[sz]e the given session as a \d+-word title\b", re.IGNORECASE),
    re.compile(
        r"\b(generate|create|write|provide|give|suggest|return|make)\b[^.\n]{0,60}\btitle\b[^.\n]{0,60}"
        r"\b(conversation|chat|dialogue|discussion|thread|following messages?)\b",
        re.IGNORECASE,
    ),
    re.compile(r"\bgive (this|the) (conversation|chat) a (name|title)\b", re.IGNORECASE),
    re.compile(
        r"\bsummari[sz]e\b[^.\n]{0,60}\b(conversation|chat|dialogue)\b[^.\n]{0,60}\b(title|name)\b", re.IGNORECASE
    ),
)
_RECORD: Final = re.compile(r"\s*(user|assistant|system)\s*:", re.IGNORECASE)
"""The beginning of a message that repeats a conversation."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task: the whole request, because nothing of it is known."""

    instructions: str | None
    messages: tuple[runs_pb2.InputMessage, ...]
    """Those of the user and of the assistant."""
    config: runs_pb2.RunConfig


def is_task(header: str | None, metadata: Mapping[str, Any], texts: tuple[str, str], *, has_tools: bool) -> bool:
    """Returns whether a request is a task of the front end.

    Args:
        header: The value of X-Mnemesh-Task, which decides: `none` is not a task.
        metadata: The metadata of the request, which may name a `task`.
        texts: The instructions and the last message of the user.
        has_tools: A request with tools is not a task, unless header or metadata say so.
    """
    if header is not None:
        return header.strip().lower() != "none"
    if metadata.get("task"):
        return True
    if has_tools:
        return False
    instructions, last = texts
    if _MESSAGES.match(last) or _INSTRUCTIONS.match(instructions):
        return True
    if _TOOL_PROMPT.match(instructions) and _QUERY.match(last):
        return True
    # Instructions that mention titles are those of a task only if the message is the record of a conversation.
    return _asks_for_title(last) or (_asks_for_title(instructions) and _RECORD.match(last) is not None)


def _asks_for_title(text: str) -> bool:
    if _OPEN_WEBUI.match(text):
        return True
    edges = text if len(text) <= 2 * _EDGE else f"{text[:_EDGE]}\n{text[-_EDGE:]}"
    return any(pattern.search(edges) for pattern in _TITLES)


class TaskService:
    """Answers tasks with hidden agents that exist for one task and are deleted with all they stored."""

    def __init__(self, agents: AgentService, runs: RunsClient, channel: grpc.aio.Channel, clock: Clock) -> None:
        self._agents = agents
        self._runs = runs
        self._stub = AgentServiceStub(channel)
        self._clock = clock
        self._deletions: set[asyncio.Task[None]] = set()
        self._swept: Cache[str, bool] = Cache(_ORGANIZATIONS, _SWEEP_SECONDS, clock)

    async def open(self, caller: Principal, model: str, task: Task) -> Answer:
        """Starts a task and returns its answer. Raises the errors of ChatService.open."""
        agent = await self._agents.find(caller, model)
        helper = agents_pb2.Agent(
            name=_TAG,
            type=agents_pb2.AGENT_TYPE_LETTA_V1,
            system=task.instructions or _PROMPT,
            model=agent.model,
            tags=[_TAG],
            hidden=True,
        )
        create = rpc.CreateAgentRequest(agent=helper, include_base_tools=False)
        helper_id = (await self._stub.CreateAgent(create, timeout=WRITE)).agent.id
        run = self._runs.send(helper_id, None, task.messages[-_MAX_MESSAGES:], config_of(task.config, {}))
        try:
            run_id, parts = await begin_answer(run, ())
        except BaseException:
            self._begin(self._delete(helper_id))
            raise
        return Answer(agent, run_id, self._end(parts, helper_id), self._clock.now())

    def sweep(self, caller: Principal) -> None:
        """Begins to delete the helpers that killed processes left in the caller's organization, once in an hour."""
        if self._swept.get(caller.organization_id) is None:
            self._swept.put(caller.organization_id, value=True)
            self._begin(self._delete(None))

    async def close(self) -> None:
        """Waits for the deletions that have begun."""
        await asyncio.gather(*self._deletions, return_exceptions=True)

    async def _end(self, parts: AsyncGenerator[Part, None], helper_id: str) -> AsyncGenerator[Part, None]:
        """Yields the answer; at its end, or if the client disconnects, the helper is deleted."""
        try:
            async with aclosing(parts):
                async for part in parts:
                    yield part
        finally:
            self._begin(self._delete(helper_id))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        deletion = asyncio.create_task(work)
        self._deletions.add(deletion)
        deletion.add_done_callback(self._deletions.discard)

    async def _delete(self, agent_id: str | None) -> None:
        """Deletes a helper, and those that killed processes left."""
        try:
            if agent_id is not None:
                await self._remove(agent_id)
            for abandoned in await self._list_abandoned():
                await self._remove(abandoned)
        except MnemeshError as error:
            _log.warning("task_agent_not_deleted", agent_id=agent_id, error=error.message)

    async def _remove(self, agent_id: str) -> None:
        # One whose client disconnected while the run was in progress is deleted later, as an abandoned one.
        with suppress(NotFound, Aborted):
            await self._stub.DeleteAgent(rpc.DeleteAgentRequest(agent_id=agent_id), timeout=WRITE)

    async def _list_abandoned(self) -> list[str]:
        request = rpc.ListAgentsRequest(
            page_size=100,
            order=paging_pb2.SORT_ORDER_ASCENDING,
            filter=rpc.AgentFilter(tags_all=[_TAG], hidden=True),
        )
        agents = (await self._stub.ListAgents(request, timeout=READ)).agents
        limit = self._clock.now() - _ABANDONED
        return [agent.id for agent in agents if timestamp_from_proto(agent.create_time, "create_time") < limit]
