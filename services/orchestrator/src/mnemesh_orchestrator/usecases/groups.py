"""Groups: creation, reads, updates, deletion, their messages, and resets."""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import structlog
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    MnemeshError,
    NotFound,
)
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, new_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.errors import GroupChanged, GroupRevisionMismatch
from mnemesh_orchestrator.model.agents import Agent, AgentFilter, AgentOrder
from mnemesh_orchestrator.model.conversations import MessagePage, MessageQuery, default_conversation_id
from mnemesh_orchestrator.model.groups import (
    Group,
    GroupChange,
    GroupFilter,
    GroupOrder,
    GroupState,
    ManagerConfig,
    SharedAttachment,
    background_manager,
    linked_agents,
    manager_field,
    require_manager_type,
    require_valid_group,
    require_valid_group_filter,
    with_plan,
)
from mnemesh_orchestrator.model.runs import RunFilter
from mnemesh_orchestrator.runs.leases import ConversationLock
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.groups import GroupStore
from mnemesh_orchestrator.usecases.context_windows import ContextWindowService
from mnemesh_orchestrator.usecases.runs import RunCancellations
from mnemesh_orchestrator.usecases.sagas import UNAVAILABLE, Saga, WorkOrigin, reconcile

_log = structlog.get_logger("mnemesh.reconciliation")
_ERASED: Final = "ERASED"

_ATTEMPTS: Final = 5


@dataclass(frozen=True, eq=False)
class GroupChanges(Saga[GroupChange, None]):
    """Carries out changes of groups."""

    resource = "group"

    store: GroupStore
    agents: AgentStore
    blocks: BlocksClient
    recall: RecallClient
    cancellations: RunCancellations
    clock: Clock
    _locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = field(init=False, default_factory=WeakValueDictionary)

    def lock(self, work: GroupChange) -> asyncio.Lock:
        return self.lock_of(work.organization_id, work.group_id)

    def lock_of(self, organization_id: str, group_id: str) -> asyncio.Lock:
        """Returns the lock under which this process changes a group of an organization."""
        return self._locks.setdefault((organization_id, group_id), asyncio.Lock())

    async def plan(self, change: GroupChange) -> GroupChange:
        """Returns a creation or an update with its effects.

        Raises:
            InvalidArgument: The manager of a voice group is not a voice agent.
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
            change = replace(change, start_sequence_id=await self.recall.newest_sequence_id(manager_id))
        held: dict[str, frozenset[str]] = dict.fromkeys(active, frozenset())
        if change.reads_memory:
            for agent_id in active:
                memory = await self.blocks.get(agent_id)
                held[agent_id] = frozenset(block.id for block in memory.blocks) if memory is not None else frozenset()
        return with_plan(change, held)

    async def _active(self, organization_id: str, agent_ids: Sequence[str]) -> dict[str, Agent]:
        page = PageQuery(len(agent_ids), ascending=True)
        found = await self.agents.list(
            organization_id, AgentFilter(agent_ids=tuple(agent_ids)), AgentOrder.CREATED_AT, page
        )
        known = {agent.id: agent for agent in found.items}
        return {agent_id: known[agent_id] for agent_id in agent_ids if agent_id in known}

    def origin(self, work: GroupChange) -> WorkOrigin:
        return WorkOrigin(
            work.group_id,
            work.organization_id,
            work.subject_id,
            work.started_at,
            work.method,
            work.request_id,
            is_removal=work.after is None or work.is_undone,
        )

    async def take_effect(self, work: GroupChange) -> None:
        """See Saga. A change that another process completed meanwhile has no effect.

        Raises:
            BLOCK_LABEL_TAKEN: An agent holds another block under the label of a shared block. All is undone.
            FailedPrecondition: A partner works for another agent. All is undone.
            Unavailable: A service does not answer. The change is finished later.
        """
        if work.is_undone:
            await self.remove_effects(work)
            return
        if work.after is None:
            await self._cancel_runs(work)
            if work.linked_before:
                await self.blocks.unlink(f"{work.id}/unlink", work.group_id)
        elif work.links is not None:
            await self._link(work, work.links)
        for pair in work.detaches:
            await self.blocks.detach_block(_request_id(work, "detach", pair), pair.agent_id, pair.block_id)
        for pair in work.attaches:
            await self._attach(work, pair)
        if not await self.store.finish(work):
            # Another process finished or undid the change, and this one may have repeated effects since.
            await self._end_effects(work)

    async def run_stored(self, change: GroupChange) -> None:
        """Carries out a change as it was stored, unless that was all there is to do. Raises the errors of `run`."""
        for item in await self.store.list_unfinished(change.group_id):
            if item.change.id == change.id:
                await self.run(item.change)

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
        for item in await self.store.list_unfinished(group_id):
            if item.group.organization_id != organization_id or item.state not in states:
                continue
            try:
                await self.run(item.change)
            except UNAVAILABLE:
                raise
            except MnemeshError:
                if key is not None and (key.method, key.request_id) == (item.change.method, item.change.request_id):
                    raise

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
                    active = bool(await self.cancellations.cancel(caller, filter_, ()))

    async def _link(self, change: GroupChange, agent_ids: Sequence[str]) -> None:
        if not agent_ids:
            await self.blocks.unlink(f"{change.id}/unlink", change.group_id)
            return
        with _naming("group.agent_ids"):
            await self.blocks.link(f"{change.id}/link", change.group_id, agent_ids, agent_ids[0])

    async def _attach(self, change: GroupChange, pair: SharedAttachment) -> None:
        try:
            with _naming("group.shared_block_ids"):
                await self.blocks.attach(_request_id(change, "attach", pair), pair.agent_id, pair.block_id)
        except FailedPrecondition as error:
            if error.reason != _ERASED:
                raise
            # The agent was deleted meanwhile.
            if change.after is not None and pair.agent_id in change.joining:
                raise _no_agent(pair.agent_id, change.after.manager) from error

    async def begin_undo(self, work: GroupChange, key: RequestKey | None) -> bool:
        return await self.store.begin_undo(work, key)

    async def remove_effects(self, work: GroupChange) -> None:
        await self._end_effects(work)
        for pair in work.detaches:
            try:
                await self.blocks.attach(new_id("request"), pair.agent_id, pair.block_id)
            except UNAVAILABLE:
                raise
            except MnemeshError as error:
                # Another request deleted the block or the agent, or took the label.
                fields = {"agent_id": pair.agent_id, "block_id": pair.block_id, "error": error.message}
                _log.warning("shared_block_not_restored", group_id=work.group_id, **fields)
        await self.store.end_undo(work)

    async def _end_effects(self, change: GroupChange) -> None:
        """Ends the link and the attachments that a change made and that the group does not have.

        These requests have new ids: a process that lags behind may repeat an effect after it was undone.
        """
        current: Group | None = None
        with suppress(NotFound):
            current = await self.store.get(change.organization_id, change.group_id)
        linked = linked_agents(current)
        if change.links is not None:
            await self._restore_link(change, linked)
        kept = set() if current is None else set(current.attachments)
        for item in await self.store.list_unfinished(change.group_id):
            if item.change.id != change.id:
                kept.update(item.change.attaches)
        for pair in dict.fromkeys((*change.attaches, *change.by_link)):
            if pair not in kept and not (pair in change.by_link and pair.agent_id in linked):
                await self.blocks.detach_block(new_id("request"), pair.agent_id, pair.block_id)

    async def _restore_link(self, change: GroupChange, linked: Sequence[str]) -> None:
        active = tuple(await self._active(change.organization_id, linked)) if linked else ()
        if len(active) > 1 and active[0] == linked[0]:
            await self.blocks.link(new_id("request"), change.group_id, active, active[0])
        else:
            await self.blocks.unlink(new_id("request"), change.group_id)

    async def finish_all(self) -> None:
        """Finishes the changes that were interrupted."""

        async def changes() -> list[GroupChange]:
            return [item.change for item in await self.store.list_unfinished()]

        await reconcile("groups", changes, self.reconcile, lambda change: change.group_id)


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
        if not isinstance(error, UNAVAILABLE):
            error.metadata["field"] = field
        raise


@dataclass(frozen=True, eq=False)
class GroupService:
    """The records of groups. Their shared blocks are in the blocks service; see GroupChanges."""

    store: GroupStore
    agents: AgentStore
    changes: GroupChanges
    recall: RecallClient
    windows: ContextWindowService
    lock: ConversationLock
    clock: Clock
    ids: IdSource

    async def create(self, caller: Principal, key: RequestKey | None, draft: Group) -> Group:
        """Creates a group, attaches its shared blocks, and returns it. A repeat under the same key continues it.

        Args:
            key: Identifies the request.
            draft: The group. Id, organization, times and authors are set here.

        Raises:
            BLOCK_LABEL_TAKEN: An agent holds another block under the label of a shared block. Nothing is kept.
            Unavailable: A service does not answer. The creation is finished later; a repeat under the same key returns
                its result.
        """
        require_valid_group(draft)
        group_id = await self.agents.outcome(key)
        if group_id is None:
            group, count = self._stamped(caller, draft), draft.turns_counter
            change = await self.changes.plan(self._change(caller, key, None, group, turns_counter=count))
            group_id, replayed = await self.store.begin(key, change)
            if not replayed:
                async with self.changes.lock_of(caller.organization_id, group_id):
                    await self.changes.run(change)
                return await self.store.get(caller.organization_id, group_id)
        async with self.changes.lock_of(caller.organization_id, group_id):
            await self.changes.finish_pending(caller.organization_id, group_id, key)
        return await self.store.get(caller.organization_id, group_id)

    def _stamped(self, caller: Principal, draft: Group) -> Group:
        now, subject = self.clock.now(), caller.subject_id
        return replace(
            draft,
            id=self.ids.new("group"),
            organization_id=caller.organization_id,
            created_at=now,
            updated_at=now,
            provenance=replace(draft.provenance, created_by_id=subject, last_updated_by_id=subject),
        )

    def _change(
        self,
        caller: Principal,
        key: RequestKey | None,
        before: Group | None,
        after: Group | None,
        group_id: str = "",
        turns_counter: int | None = None,
    ) -> GroupChange:
        known = after or before
        return GroupChange(
            id=self.ids.new("group"),
            group_id=group_id if known is None else known.id,
            organization_id=caller.organization_id,
            started_at=self.clock.now(),
            subject_id=caller.subject_id,
            before=before,
            after=after,
            turns_counter=turns_counter,
            method=None if key is None else key.method,
            request_id=None if key is None else key.request_id,
        )

    async def get(self, caller: Principal, group_id: str) -> Group:
        """Returns a group. Raises NotFound."""
        return await self.store.get(caller.organization_id, group_id)

    async def list(self, caller: Principal, filter_: GroupFilter, order_by: GroupOrder, page: PageQuery) -> Page[Group]:
        """Returns a page of groups. Raises InvalidArgument if the filter breaks a rule."""
        return await self.store.list(caller.organization_id, require_valid_group_filter(filter_), order_by, page)

    async def count(self, caller: Principal, filter_: GroupFilter) -> int:
        """Returns the number of groups. Raises InvalidArgument if the filter breaks a rule."""
        return await self.store.count(caller.organization_id, require_valid_group_filter(filter_))

    async def update(
        self,
        caller: Principal,
        key: RequestKey | None,
        group_id: str,
        changes: Mapping[str, Any],
        *,
        if_revision: int | None = None,
    ) -> Group:
        """Changes fields of a group, and returns the group. Shared blocks are attached and detached accordingly.

        Args:
            key: Identifies the request.
            changes: New values by the field names of `Group`. The value of `provenance` is a mapping of those of its
                fields that change, that of `manager_fields` the kind of the manager and a mapping of its fields.
            if_revision: The revision that the group must have; None changes any.

        Raises:
            GroupRevisionMismatch: The group has another revision.
            NotFound: The group, an agent that joins or a new shared block does not exist. Nothing is changed.
            BLOCK_LABEL_TAKEN: An agent holds another block under the label of a shared block. Nothing is changed.
            GroupChanged: Other requests change the group without pause.
            Unavailable: A service does not answer. The update is finished later; a repeat under the same key returns
                its result.
        """
        organization_id = caller.organization_id
        async with self.changes.lock_of(caller.organization_id, group_id):
            for attempt in range(1, _ATTEMPTS + 1):
                await self.changes.finish_pending(organization_id, group_id, key)
                if await self.agents.outcome(key) is not None:
                    break
                try:
                    await self._change_once(caller, key, group_id, changes, if_revision)
                    break
                except GroupChanged:
                    if attempt == _ATTEMPTS:
                        raise
            return await self.store.get(organization_id, group_id)

    async def _change_once(
        self,
        caller: Principal,
        key: RequestKey | None,
        group_id: str,
        changes: Mapping[str, Any],
        if_revision: int | None,
    ) -> None:
        """Updates a group as it is now. Raises GroupChanged if another process changes it meanwhile."""
        before = await self.store.get(caller.organization_id, group_id)
        if if_revision is not None and before.revision != if_revision:
            raise GroupRevisionMismatch(group_id, before.revision)
        after = require_valid_group(_changed(before, changes), changes)
        provenance = replace(after.provenance, last_updated_by_id=caller.subject_id)
        after = replace(after, updated_at=self.clock.now(), provenance=provenance)
        count = changes.get("turns_counter")
        change = await self.changes.plan(self._change(caller, key, before, after, turns_counter=count))
        await self.store.begin(key, change)
        await self.changes.run_stored(change)

    async def delete(self, caller: Principal, key: RequestKey | None, group_id: str) -> None:
        """Cancels the runs of a group, detaches its shared blocks, and deletes it. A missing group is not an error.

        Raises:
            Unavailable: A service does not answer. The group is invisible, and the rest is deleted later.
        """
        with suppress(NotFound):  # it was deleted, or another request is deleting it
            await self.store.begin(key, self._change(caller, key, None, None, group_id))
        async with self.changes.lock_of(caller.organization_id, group_id):
            states = (GroupState.DELETING,)
            await self.changes.finish_pending(caller.organization_id, group_id, key, states)

    async def messages(self, caller: Principal, group_id: str, query: MessageQuery) -> MessagePage:
        """Returns a page of the messages of a group's runs, with the page tokens of recall."""
        group = await self.store.get(caller.organization_id, group_id)
        return await self.recall.list_messages(replace(query, group_id=group.id))

    async def reset(
        self, caller: Principal, key: RequestKey | None, group_id: str, *, keep_turns_counter: bool = False
    ) -> Group:
        """Removes all messages except the system messages from the default windows of the agents. Recall keeps them.

        The agents are reset one after the other, in the order of their ids, so that two resets do not wait for each
        other. The counter of a sleeptime group is reset, too, unless `keep_turns_counter` is true, and no transcript
        contains the earlier messages. A repeat under the same key continues the first request.

        Raises:
            ConversationBusy: Earlier runs and other work of the group or an agent did not end in time.
        """
        organization_id = caller.organization_id
        queue = (await self.store.get(organization_id, group_id)).conversation_id
        # No run of the group is in the middle of a round, and the next one finds empty windows.
        async with self.lock.take(organization_id, "", queue):
            group = await self.store.get(organization_id, group_id)
            for agent_id in sorted(group.all_agent_ids):
                skip = None
                if agent_id == background_manager(group):
                    skip = partial(self._skip_messages, key, group, keep_turns_counter)
                conversation_id = default_conversation_id(agent_id)
                with suppress(NotFound):  # a deleted manager
                    await self.windows.reset(
                        caller, _part(key, agent_id), agent_id, conversation_id, add_default=False, while_locked=skip
                    )
        return await self.store.get(organization_id, group_id)

    async def _skip_messages(self, key: RequestKey | None, group: Group, keep_turns_counter: bool) -> None:
        """Marks all messages of a sleeptime manager as processed."""
        newest = await self.recall.newest_sequence_id(background_manager(group) or "")
        await self.store.reset(
            _part(key, "progress"), group.organization_id, group.id, newest, keep_turns_counter=keep_turns_counter
        )


def _part(key: RequestKey | None, part: str) -> RequestKey | None:
    return None if key is None else replace(key, request_id=f"{key.request_id}/{part}")


def _changed(group: Group, changes: Mapping[str, Any]) -> Group:
    """Returns a group with new values. Raises InvalidArgument if they are fields of another kind of manager."""
    values = dict(changes)
    provenance = replace(group.provenance, **values.pop("provenance", {}))
    kind, fields = values.pop("manager_fields", (None, {}))
    changed = replace(group, **values, provenance=provenance)
    if kind is None:
        return changed
    if kind is not changed.manager.type:
        raise InvalidArgument(
            f"update_mask must not name fields of manager_config.{kind}: the manager of the group is of the kind "
            f"{changed.manager.type}. Name manager_config to replace it.",
            field="update_mask",
        )
    return replace(changed, manager=replace(changed.manager, **fields))
