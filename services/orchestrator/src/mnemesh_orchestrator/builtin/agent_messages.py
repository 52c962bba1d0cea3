"""The tools with which an agent sends messages to other agents. Each message is a run of its recipient."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mnemesh_kit.errors import MnemeshError, NotFound
from mnemesh_kit.ids import is_id
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.time import Clock
from mnemesh_types.messages import Role, TextPart

from mnemesh_orchestrator.builtin.arguments import is_for_model
from mnemesh_orchestrator.builtin.call import BuiltinCall, ChildOutcome, ChildRequest, ChildRunsPort, Refused
from mnemesh_orchestrator.errors import MessageCycle, MessageDepthExceeded, PendingApproval, ProcessorFailed
from mnemesh_orchestrator.model.agents import Agent, AgentFilter, AgentOrder
from mnemesh_orchestrator.model.groups import BACKGROUND_TYPES, Group
from mnemesh_orchestrator.model.inputs import InputMessage, require_valid_inputs
from mnemesh_orchestrator.model.runs import Run, RunOrigin, RunStatus, StopReason
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.groups import GroupStore

MAX_RECIPIENTS: Final = 100
"""The largest number of agents that one call writes to."""
MAX_AT_ONCE: Final = 10
"""The largest number of agents that answer one call at the same time."""
_LAST_LOOK_SECONDS: Final = 5.0
"""The least time of a wait, for a call that is resumed after its time has passed."""

_KINDS: Final[Mapping[type[MnemeshError], str]] = {
    MessageCycle: "MESSAGE_CYCLE",
    MessageDepthExceeded: "MESSAGE_DEPTH_EXCEEDED",
}
"""The kinds of refusals whose errors have no reason of their own."""

_SENT: Final = "Successfully sent message"
_REPLY: Final = (
    "[This message comes from the agent {name} (id {id}), not from the user. What you say in this turn, as you would "
    "say it to the user, is returned to that agent as your reply.]\n\n{message}"
)
_NO_REPLY: Final = (
    "[This message comes from the agent {name} (id {id}), not from the user. That agent does not wait for a reply. To "
    "answer, send it a message with a tool, if you have one.]\n\n{message}"
)
_OUTSIDE: Final = (
    "{name} works only while the agent takes a turn. Use SendMessage or StartRun to send a message to another agent."
)


@dataclass(frozen=True, slots=True)
class _Recipient:
    """An agent that a message goes to. `agent` is None if it does not exist."""

    id: str
    agent: Agent | None


class _NoReply(Exception):
    """An agent gives no reply. `kind` names the reason."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class AgentMessages:
    """The messages of agents to other agents of their organization."""

    def __init__(
        self,
        agents: AgentStore,
        groups: GroupStore,
        children: ChildRunsPort,
        clock: Clock,
        reply_seconds: float,
    ) -> None:
        """`reply_seconds` is the time for which a sender waits for a reply."""
        self._agents = agents
        self._groups = groups
        self._children = children
        self._clock = clock
        self._reply_seconds = reply_seconds

    async def ask(self, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
        """Runs send_message_to_agent_and_wait_for_reply."""
        run = _run(call)
        recipient = await self._recipient(run, arguments["other_agent_id"])
        reply = await self._reply(call, run, recipient, arguments["message"], call.effect(0))
        if "error" in reply:
            raise Refused(str(reply))
        return str(reply)

    async def send(self, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
        """Runs send_message_to_agent_async."""
        run = _run(call)
        recipient = await self._recipient(run, arguments["other_agent_id"])
        message = _NO_REPLY.format(name=call.agent_name, id=call.agent_id, message=arguments["message"])
        try:
            await self._start(call, run, recipient, message, call.effect(0), is_awaited=False)
        except _NoReply as error:
            raise Refused(str(_failure(recipient, error))) from error
        return _SENT

    async def ask_by_tags(self, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
        """Runs send_message_to_agents_matching_tags."""
        run, tags_all, tags_any = _run(call), tuple(arguments["match_all"]), tuple(arguments["match_some"])
        if not tags_all and not tags_any:
            raise Refused("match_all and match_some are empty. Name at least one tag. Nothing was sent.")
        query, filter_ = PageQuery(MAX_RECIPIENTS, ascending=True), AgentFilter(tags_all=tags_all, tags_any=tags_any)
        found: dict[str, Agent] = {}
        while len(found) <= MAX_RECIPIENTS:
            page = await self._agents.list(run.organization_id, filter_, AgentOrder.CREATED_AT, query)
            found |= {agent.id: agent for agent in page.items if agent.id != call.agent_id}
            if page.next_cursor is None:
                break
            query = PageQuery(MAX_RECIPIENTS, ascending=True, cursor=page.next_cursor)
        return await self._ask_all(call, run, list(found), arguments["message"])

    async def ask_group(self, call: BuiltinCall, arguments: Mapping[str, Any]) -> str:
        """Runs send_message_to_all_agents_in_group."""
        run = _run(call)
        members = run.lineage.supervised_agent_ids or (await self._group(call, run)).agent_ids
        others = [agent_id for agent_id in members if agent_id != call.agent_id]
        return await self._ask_all(call, run, others, arguments["message"], run.group_id)

    async def _group(self, call: BuiltinCall, run: Run) -> Group:
        """Returns the group in which the run takes a turn, or the only one that the agent belongs to."""
        if run.group_id is not None:
            return await self._groups.get(run.organization_id, run.group_id)
        ids = (await self._groups.of_agents(run.organization_id, [call.agent_id])).get(call.agent_id, ())
        groups = [await self._groups.get(run.organization_id, group_id) for group_id in ids]
        groups = [group for group in groups if group.manager.type not in BACKGROUND_TYPES]
        if not groups:
            raise Refused("You are in no group. Nothing was sent. Send messages to single agents instead.")
        if len(groups) > 1:
            raise Refused(
                f"You are in {len(groups)} groups, and this turn belongs to none of them, so it is not clear which one "
                "you mean. Nothing was sent. Send messages to single agents instead."
            )
        return groups[0]

    async def _ask_all(
        self, call: BuiltinCall, run: Run, agent_ids: Sequence[str], message: str, group_id: str | None = None
    ) -> str:
        """Asks agents at the same time, and returns their replies in this order.

        With `group_id`, their runs belong to the group.
        """
        # Before a crash, a message may have gone to an agent that left meanwhile. Its reply is still returned.
        effects = {agent_id: f"{call.effect(0)}/{agent_id}" for agent_id in agent_ids}
        for child in await self._children.list_children(run):
            if child.id == self._children.run_id(run, effect := f"{call.effect(0)}/{child.agent_id}"):
                effects.setdefault(child.agent_id, effect)
        if len(effects) > MAX_RECIPIENTS:
            raise Refused(
                f"More than {MAX_RECIPIENTS} agents would get the message. Nothing was sent. Choose fewer agents."
            )
        slots = asyncio.Semaphore(MAX_AT_ONCE)

        async def ask(agent_id: str, effect: str) -> dict[str, Any]:
            async with slots:
                return await self._reply(call, run, await self._recipient(run, agent_id), message, effect, group_id)

        tasks = [asyncio.ensure_future(ask(agent_id, effect)) for agent_id, effect in effects.items()]
        try:
            return str(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _recipient(self, run: Run, agent_id: str) -> _Recipient:
        if not is_id(agent_id, "agent"):
            return _Recipient(agent_id, None)
        try:
            return _Recipient(agent_id, await self._agents.get(run.organization_id, agent_id))
        except NotFound:
            return _Recipient(agent_id, None)

    async def _reply(
        self,
        call: BuiltinCall,
        run: Run,
        recipient: _Recipient,
        message: str,
        effect_id: str,
        group_id: str | None = None,
    ) -> dict[str, Any]:
        """Returns the reply of an agent, or why there is none."""
        text = _REPLY.format(name=call.agent_name, id=call.agent_id, message=message)
        try:
            child = await self._start(call, run, recipient, text, effect_id, is_awaited=True, group_id=group_id)
            outcome = await self._outcome(call, run, child)
        except _NoReply as error:
            return _failure(recipient, error)
        name = recipient.agent.name if recipient.agent is not None else ""
        return {"agent_id": recipient.id, "response": list(outcome.words), "agent_name": name}

    async def _start(
        self,
        call: BuiltinCall,
        run: Run,
        recipient: _Recipient,
        text: str,
        effect_id: str,
        *,
        is_awaited: bool,
        group_id: str | None = None,
    ) -> Run:
        """Starts the recipient's run. Raises _NoReply if the message is refused."""
        if recipient.agent is None:
            raise _NoReply("NOT_FOUND", f"There is no agent {recipient.id[:100]}. Give the id of an agent.")
        message = InputMessage((TextPart(text),), Role.SYSTEM, sender_id=call.agent_id)
        try:
            messages = require_valid_inputs((message,))
            request = ChildRequest(
                effect_id, recipient.id, messages, RunOrigin.AGENT, is_awaited=is_awaited, group_id=group_id
            )
            return await self._children.start(run, request)
        except PendingApproval as error:
            raise _NoReply(
                error.reason, "The agent waits for a person's approval and takes no messages until it is decided."
            ) from error
        except MnemeshError as error:
            raise _refusal(error) from error

    async def _outcome(self, call: BuiltinCall, run: Run, child: Run) -> ChildOutcome:
        """Waits for the end of the recipient's run. Raises _NoReply if it has no reply."""
        waited = (self._clock.now() - child.created_at).total_seconds()
        left = max(self._reply_seconds - waited, min(_LAST_LOOK_SECONDS, self._reply_seconds))
        try:
            async with asyncio.timeout(left):
                outcome = await self._children.outcome(run, child.id, call.show_approval)
        except TimeoutError:
            raise await self._timeout(run, child) from None
        except MnemeshError as error:
            raise _refusal(error) from error
        if outcome.run.status is RunStatus.COMPLETED and outcome.run.stop_reason is not StopReason.REQUIRES_APPROVAL:
            return outcome
        raise _no_reply(outcome.run)

    async def _timeout(self, run: Run, child: Run) -> _NoReply:
        waited = f"within {self._reply_seconds:g} seconds"
        try:
            is_withdrawn = await self._children.withdraw(run, child.id)
        except NotFound as error:
            return _NoReply(error.reason, "The agent was deleted before it answered.")
        if is_withdrawn:
            return _NoReply("REPLY_TIMEOUT", f"The agent did not begin to answer {waited}. The message was withdrawn.")
        text = f"The agent did not finish its answer {waited}. It goes on, but its reply will not be delivered."
        return _NoReply("REPLY_TIMEOUT", text)


def _run(call: BuiltinCall) -> Run:
    if call.run is None:
        raise Refused(_OUTSIDE.format(name=call.name))
    return call.run


def _refusal(error: MnemeshError) -> _NoReply:
    """Returns the refusal for an error that concerns the message. Raises any other error."""
    if isinstance(error, NotFound):
        return _NoReply(error.reason, "The agent was deleted.")
    if is_for_model(error) or isinstance(error, ProcessorFailed):
        return _NoReply(_KINDS.get(type(error), error.reason), error.message)
    raise error


def _no_reply(run: Run) -> _NoReply:
    """Returns why a run that has ended has no reply."""
    if run.error is not None:
        return _NoReply(run.error.reason, f"The agent failed: {run.error.message}")
    if run.status is RunStatus.CANCELLED:
        return _NoReply("CANCELLED", "The agent's run was cancelled before it answered.")
    return _NoReply("NO_REPLY", "The agent stopped before it answered.")


def _failure(recipient: _Recipient, error: _NoReply) -> dict[str, Any]:
    return {"agent_id": recipient.id, "error": str(error), "type": error.kind}
