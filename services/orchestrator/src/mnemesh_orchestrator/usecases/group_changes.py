"""Changes of groups across the services: each takes effect completely or not at all, whatever fails meanwhile."""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final
from weakref import WeakValueDictionary

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    MnemeshError,
    NotFound,
    Unavailable,
)
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.principal import Principal, as_principal

from mnemesh_orchestrator.model.agents import Agent, AgentFilter, AgentOrder
from mnemesh_orchestrator.model.group_changes import (
    GroupChange,
    UnfinishedGroup,
    background_manager,
    linked_agents,
    with_plan,
)
from mnemesh_orchestrator.model.group_rules import require_manager_type
from mnemesh_orchestrator.model.groups import Group, GroupState, ManagerConfig, SharedAttachment, manager_field
from mnemesh_orchestrator.model.runs import RunFilter
from mnemesh_orchestrator.ports.blocks import CoreMemoryPort
from mnemesh_orchestrator.ports.recall import RecallPort
from mnemesh_orchestrator.store.base import AgentStore, GroupStore
from mnemesh_orchestrator.usecases.reconciliation import GIVE_UP, reconcile
from mnemesh_orchestrator.usecases.run_cancellations import RunCancellations

GRACE: Final = timedelta(seconds=60)
"""A younger change may still be in progress in another process."""

_log = structlog.get_logger("mnemesh.reconciliation")
_UNAVAILABLE = (Unavailable, DeadlineExceeded, Internal)
_ERASED: Final = "ERASED"


class GroupChanges:
    """Carries out changes of groups. Each effect can be repeated by any process, because its request id is derived."""

    def __init__(
        self,
        store: GroupStore,
        agents: AgentStore,
        blocks: CoreMemoryPort,
        recall: RecallPort,
        cancellations: RunCancellations,
        clock: Clock,
    ) -> None:
        self._store = store
        self._agents = agents
        self._blocks = blocks
        self._recall = recall
        self._cancellations = cancellations
        self._clock = clock
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def lock(self, organization_id: str, group_id: str) -> asyncio.Lock:
        """Returns the lock under which this process changes a group of an organization."""
        return self._locks.setdefault((organization_id, group_id), asyncio.Lock())

    async def plan(self, change: GroupChange) -> GroupChange:
        """Returns a creation or an update with its effects.

        Raises:
            NotFound: An agent that joins does not exist.
            InvalidArgument: The manager of a voice group is no voice agent.
        """
        after = change.after
        if after is None or not (change.joining or change.reads_memory or change.has_new_manager):
            return with_plan(change, {})
        active = await self._active(change.organization_id, after.all_agent_ids)
        manager_id = background_manager(after) or ""
        starts = (manager_id,) if change.has_new_background_manager else ()
        for agent_id in (*change.joining, *starts):
            if agent_id not in active:
                raise _no_agent(agent_id, after.manager)
        if change.has_new_manager and manager_id in active:
            require_manager_type(after.manager, active[manager_id].type)
        if starts:
            change = replace(change, start_sequence_id=await self._recall.newest_sequence_id(manager_id))
        held: dict[str, frozenset[str]] = dict.fromkeys(active, frozenset())
        if change.reads_memory:
            for agent_id in active:
                memory = await self._blocks.get(agent_id)
                held[agent_id] = frozenset(block.id for block in memory.blocks) if memory is not None else frozenset()
        return with_plan(change, held)

    async def _active(self, organization_id: str, agent_ids: Sequence[str]) -> dict[str, Agent]:
        page = PageQuery(len(agent_ids), ascending=True)
        found = await self._agents.list(
            organization_id, AgentFilter(agent_ids=tuple(agent_ids)), AgentOrder.CREATED_AT, page
        )
        known = {agent.id: agent for agent in found.items}
        return {agent_id: known[agent_id] for agent_id in agent_ids if agent_id in known}

    async def complete(self, change: GroupChange) -> None:
        """Carries out a change that is stored. A change that another process completed meanwhile has no effect.

        Raises:
            BLOCK_LABEL_TAKEN: An agent holds another block under the label of a shared block. All is undone.
            NotFound: A shared block or an agent that joins does not exist. All is undone.
            FailedPrecondition: A partner works for another agent. All is undone.
            Unavailable: A service does not answer. The change is finished later.
        """
        if change.is_undone:
            await self._roll_back(change)
            return
        try:
            await self._take_effect(change)
            is_finished = await self._store.finish(change)
        except _UNAVAILABLE:
            raise
        except MnemeshError:
            if change.after is not None:  # a deletion goes on
                await self._undo(change)
            raise
        if not is_finished:
            # Another process finished or undid the change, and this one may have repeated effects since.
            await self._remove_effects(change)

    async def complete_stored(self, change: GroupChange) -> None:
        """Completes a change as it was stored, unless that was all there is to do. Raises the errors of `complete`."""
        for item in await self._store.unfinished(change.group_id):
            if item.change.id == change.id:
                await self.complete(item.change)

    async def finish_pending(
        self,
        organization_id: str,
        group_id: str,
        key: RequestKey | None = None,
        states: Collection[GroupState] = tuple(GroupState),
    ) -> None:
        """Completes the change of a group that an earlier call left behind, if there is one.

        Raises:
            Unavailable: A service does not answer.
            MnemeshError: The change failed and is undone, and it is that of the request `key`.
        """
        for item in await self._store.unfinished(group_id):
            if item.group.organization_id != organization_id or item.state not in states:
                continue
            try:
                await self.complete(item.change)
            except _UNAVAILABLE:
                raise
            except MnemeshError:
                if key is not None and (key.method, key.request_id) == (item.change.method, item.change.request_id):
                    raise

    async def _take_effect(self, change: GroupChange) -> None:
        if change.after is None:
            await self._cancel_runs(change)
            if change.linked_before:
                await self._blocks.unlink(f"{change.id}/unlink", change.group_id)
        elif change.links is not None:
            await self._link(change, change.links)
        for pair in change.detaches:
            await self._blocks.detach_block(_request_id(change, "detach", pair), pair.agent_id, pair.block_id)
        for pair in change.attaches:
            await self._attach(change, pair)

    async def _cancel_runs(self, change: GroupChange) -> None:
        """Cancels the runs of a group that is being deleted, before those that they started."""
        group = change.before
        if group is None:
            return
        caller = Principal(change.organization_id, change.subject_id)
        for filter_ in (RunFilter(conversation_id=group.conversation_id), RunFilter(group_id=group.id)):
            active = True
            while active:
                with suppress(NotFound):  # a run whose agent is deleted meanwhile
                    active = bool(await self._cancellations.cancel(caller, filter_, ()))

    async def _link(self, change: GroupChange, agent_ids: Sequence[str]) -> None:
        if not agent_ids:
            await self._blocks.unlink(f"{change.id}/unlink", change.group_id)
            return
        with _naming("group.agent_ids"):
            await self._blocks.link(f"{change.id}/link", change.group_id, agent_ids, agent_ids[0])

    async def _attach(self, change: GroupChange, pair: SharedAttachment) -> None:
        try:
            with _naming("group.shared_block_ids"):
                await self._blocks.attach(_request_id(change, "attach", pair), pair.agent_id, pair.block_id)
        except FailedPrecondition as error:
            if error.reason != _ERASED:
                raise
            # The agent was deleted meanwhile.
            if change.after is not None and pair.agent_id in change.joining:
                raise _no_agent(pair.agent_id, change.after.manager) from error

    async def _undo(self, change: GroupChange) -> None:
        """Undoes a change, unless another process finished it. What an outage interrupts is undone later."""
        key = None
        if change.method is not None and change.request_id is not None:
            key = RequestKey(change.organization_id, change.method, change.request_id, "")
        if await self._store.begin_undo(change, key):
            with suppress(*_UNAVAILABLE):
                await self._roll_back(change)

    async def _roll_back(self, change: GroupChange) -> None:
        """Removes the effects of a change, and ends it."""
        await self._remove_effects(change)
        for pair in change.detaches:
            try:
                await self._blocks.attach(new_id("request"), pair.agent_id, pair.block_id)
            except _UNAVAILABLE:
                raise
            except MnemeshError as error:
                # Another request deleted the block or the agent, or took the label.
                fields = {"agent_id": pair.agent_id, "block_id": pair.block_id, "error": error.message}
                _log.warning("shared_block_not_restored", group_id=change.group_id, **fields)
        await self._store.end_undo(change)

    async def _remove_effects(self, change: GroupChange) -> None:
        """Ends the link and the attachments that a change made and that the group does not have.

        These requests have new ids: a process that lags behind may repeat an effect after it was undone.
        """
        current: Group | None = None
        with suppress(NotFound):
            current = await self._store.get(change.organization_id, change.group_id)
        linked = linked_agents(current)
        if change.links is not None:
            await self._restore_link(change, linked)
        kept = set() if current is None else set(current.attachments)
        for item in await self._store.unfinished(change.group_id):
            if item.change.id != change.id:
                kept.update(item.change.attaches)
        for pair in dict.fromkeys((*change.attaches, *change.by_link)):
            if pair not in kept and not (pair in change.by_link and pair.agent_id in linked):
                await self._blocks.detach_block(new_id("request"), pair.agent_id, pair.block_id)

    async def _restore_link(self, change: GroupChange, linked: Sequence[str]) -> None:
        active = tuple(await self._active(change.organization_id, linked)) if linked else ()
        if len(active) > 1 and active[0] == linked[0]:
            await self._blocks.link(new_id("request"), change.group_id, active, active[0])
        else:
            await self._blocks.unlink(new_id("request"), change.group_id)

    async def finish_all(self) -> None:
        """Finishes the changes that were interrupted."""
        await reconcile("groups", self._store.unfinished, self._finish, lambda item: item.group.id)

    async def _finish(self, item: UnfinishedGroup) -> None:
        change, now = item.change, self._clock.now()
        if item.state is not GroupState.DELETING and not change.is_undone and change.started_at > now - GRACE:
            return
        with as_principal(Principal(change.organization_id, change.subject_id)):
            async with self.lock(change.organization_id, change.group_id):
                try:
                    await self.complete(change)
                except Internal as error:
                    if change.after is None or change.is_undone or change.started_at > now - GIVE_UP:
                        raise
                    _log.error("change_undone", resource="group", id=change.group_id, error=error.message)
                    await self._undo(change)


def _request_id(change: GroupChange, effect: str, pair: SharedAttachment) -> str:
    return f"{change.id}/{effect}/{pair.agent_id}/{pair.block_id}"


def _no_agent(agent_id: str, manager: ManagerConfig) -> NotFound:
    field = manager_field(manager) if agent_id == manager.manager_agent_id else "group.agent_ids"
    return NotFound(f"There is no agent {agent_id}.", field=field, resource_id=agent_id)


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """Adds the field of the group to the errors of another service."""
    try:
        yield
    except MnemeshError as error:
        if not isinstance(error, _UNAVAILABLE):
            error.metadata["field"] = field
        raise
