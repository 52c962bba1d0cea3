"""Groups: creation, reads, updates, deletion, their messages, and resets."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import Principal

from mnemesh_orchestrator.errors import GroupChanged, GroupRevisionMismatch
from mnemesh_orchestrator.model.conversations import default_conversation_id
from mnemesh_orchestrator.model.group_changes import GroupChange, background_manager
from mnemesh_orchestrator.model.group_rules import require_valid_group, require_valid_group_filter
from mnemesh_orchestrator.model.groups import Group, GroupFilter, GroupOrder, GroupState
from mnemesh_orchestrator.model.message_lists import MessagePage, MessageQuery
from mnemesh_orchestrator.ports.recall import RecallPort
from mnemesh_orchestrator.runs.conversation_lock import ConversationLock
from mnemesh_orchestrator.store.base import AgentStore, GroupStore
from mnemesh_orchestrator.usecases.context_windows import ContextWindowService
from mnemesh_orchestrator.usecases.group_changes import GroupChanges

_ATTEMPTS: Final = 5


class GroupService:
    """The records of groups. Their shared blocks are in the blocks service; see GroupChanges."""

    def __init__(
        self,
        store: GroupStore,
        agents: AgentStore,
        changes: GroupChanges,
        recall: RecallPort,
        windows: ContextWindowService,
        lock: ConversationLock,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._store = store
        self._agents = agents
        self._changes = changes
        self._recall = recall
        self._windows = windows
        self._lock = lock
        self._clock = clock
        self._ids = ids

    async def create(self, caller: Principal, key: RequestKey | None, draft: Group) -> Group:
        """Creates a group, attaches its shared blocks, and returns it. A repeat under the same key continues it.

        Args:
            caller: The caller.
            key: Identifies the request.
            draft: The group. Id, organization, times and authors are set here.

        Raises:
            InvalidArgument: A field breaks its rule, or the manager of a sleeptime group manages another one.
            NotFound: An agent or a shared block does not exist. Nothing is kept.
            BLOCK_LABEL_TAKEN: An agent holds another block under the label of a shared block. Nothing is kept.
            Unavailable: A service does not answer. The creation is finished later; a repeat under the same key returns
                its result.
        """
        require_valid_group(draft)
        group_id = None if key is None else await self._agents.outcome(key)
        if group_id is None:
            group, count = self._stamped(caller, draft), draft.turns_counter
            change = await self._changes.plan(self._change(caller, key, None, group, turns_counter=count))
            group_id, replayed = await self._store.begin(key, change)
            if not replayed:
                async with self._changes.lock(caller.organization_id, group_id):
                    await self._changes.complete(change)
                return await self._store.get(caller.organization_id, group_id)
        async with self._changes.lock(caller.organization_id, group_id):
            await self._changes.finish_pending(caller.organization_id, group_id, key)
        return await self._store.get(caller.organization_id, group_id)

    def _stamped(self, caller: Principal, draft: Group) -> Group:
        now, subject = self._clock.now(), caller.subject_id
        return replace(
            draft,
            id=self._ids.new("group"),
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
            id=self._ids.new("group"),
            group_id=group_id if known is None else known.id,
            organization_id=caller.organization_id,
            started_at=self._clock.now(),
            subject_id=caller.subject_id,
            before=before,
            after=after,
            turns_counter=turns_counter,
            method=None if key is None else key.method,
            request_id=None if key is None else key.request_id,
        )

    async def get(self, caller: Principal, group_id: str) -> Group:
        """Returns a group. Raises NotFound."""
        return await self._store.get(caller.organization_id, group_id)

    async def list(self, caller: Principal, filter_: GroupFilter, order_by: GroupOrder, page: PageQuery) -> Page[Group]:
        """Returns a page of groups. Raises InvalidArgument if the filter breaks a rule."""
        return await self._store.list(caller.organization_id, require_valid_group_filter(filter_), order_by, page)

    async def count(self, caller: Principal, filter_: GroupFilter) -> int:
        """Returns the number of groups. Raises InvalidArgument if the filter breaks a rule."""
        return await self._store.count(caller.organization_id, require_valid_group_filter(filter_))

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
            caller: The caller.
            key: Identifies the request.
            group_id: The group.
            changes: New values by the field names of `Group`. The value of `provenance` is a mapping of those of its
                fields that change, that of `manager_fields` the kind of the manager and a mapping of its fields.
            if_revision: The revision that the group must have; None changes any.

        Raises:
            GroupRevisionMismatch: The group has another revision.
            InvalidArgument: A value breaks its rule, or `manager_fields` are those of another kind of manager.
            NotFound: The group, an agent that joins or a new shared block does not exist. Nothing is changed.
            BLOCK_LABEL_TAKEN: An agent holds another block under the label of a shared block. Nothing is changed.
            GroupChanged: Other requests change the group without pause.
            Unavailable: A service does not answer. The update is finished later; a repeat under the same key returns
                its result.
        """
        organization_id = caller.organization_id
        async with self._changes.lock(caller.organization_id, group_id):
            for attempt in range(1, _ATTEMPTS + 1):
                await self._changes.finish_pending(organization_id, group_id, key)
                if key is not None and await self._agents.outcome(key) is not None:
                    break
                try:
                    await self._change_once(caller, key, group_id, changes, if_revision)
                    break
                except GroupChanged:
                    if attempt == _ATTEMPTS:
                        raise
            return await self._store.get(organization_id, group_id)

    async def _change_once(
        self,
        caller: Principal,
        key: RequestKey | None,
        group_id: str,
        changes: Mapping[str, Any],
        if_revision: int | None,
    ) -> None:
        """Updates a group as it is now. Raises GroupChanged if another process changes it meanwhile."""
        before = await self._store.get(caller.organization_id, group_id)
        if if_revision is not None and before.revision != if_revision:
            raise GroupRevisionMismatch(group_id, before.revision)
        after = require_valid_group(_changed(before, changes), changes)
        provenance = replace(after.provenance, last_updated_by_id=caller.subject_id)
        after = replace(after, updated_at=self._clock.now(), provenance=provenance)
        count = changes.get("turns_counter")
        change = await self._changes.plan(self._change(caller, key, before, after, turns_counter=count))
        await self._store.begin(key, change)
        await self._changes.complete_stored(change)

    async def delete(self, caller: Principal, key: RequestKey | None, group_id: str) -> None:
        """Cancels the runs of a group, detaches its shared blocks, and deletes it. A missing group is no error.

        Raises:
            Unavailable: A service does not answer. The group is invisible, and the rest is deleted later.
        """
        with suppress(NotFound):  # it was deleted, or another request is deleting it
            await self._store.begin(key, self._change(caller, key, None, None, group_id))
        async with self._changes.lock(caller.organization_id, group_id):
            states = (GroupState.DELETING,)
            await self._changes.finish_pending(caller.organization_id, group_id, key, states)

    async def messages(self, caller: Principal, group_id: str, query: MessageQuery) -> MessagePage:
        """Returns a page of the messages of a group's runs, with the page tokens of recall.

        Raises:
            NotFound: The group does not exist.
            InvalidArgument: The query breaks a rule.
        """
        group = await self._store.get(caller.organization_id, group_id)
        return await self._recall.list_messages(replace(query, group_id=group.id))

    async def reset(
        self, caller: Principal, key: RequestKey | None, group_id: str, *, keep_turns_counter: bool = False
    ) -> Group:
        """Removes all messages except the system messages from the default windows of the agents. Recall keeps them.

        The agents are reset one after the other, in the order of their ids, so that two resets do not wait for each
        other. The counter of a sleeptime group is reset, too, unless `keep_turns_counter` is true, and no transcript
        contains the earlier messages. A repeat under the same key continues the first request.

        Raises:
            NotFound: The group does not exist.
            ConversationBusy: Earlier runs and other work of the group or an agent did not end in time.
        """
        organization_id = caller.organization_id
        queue = (await self._store.get(organization_id, group_id)).conversation_id
        # No run of the group is in the middle of a round, and the next one finds empty windows.
        async with self._lock.take(organization_id, "", queue):
            group = await self._store.get(organization_id, group_id)
            for agent_id in sorted(group.all_agent_ids):
                skip = None
                if agent_id == background_manager(group):
                    skip = partial(self._skip_messages, key, group, keep_turns_counter)
                conversation_id = default_conversation_id(agent_id)
                with suppress(NotFound):  # a deleted manager
                    await self._windows.reset(
                        caller, _part(key, agent_id), agent_id, conversation_id, add_default=False, while_locked=skip
                    )
        return await self._store.get(organization_id, group_id)

    async def _skip_messages(self, key: RequestKey | None, group: Group, keep_turns_counter: bool) -> None:
        """Marks all messages of a sleeptime manager as processed."""
        newest = await self._recall.newest_sequence_id(background_manager(group) or "")
        await self._store.reset(
            _part(key, "progress"), group.organization_id, group.id, newest, keep_turns_counter=keep_turns_counter
        )


def _part(key: RequestKey | None, part: str) -> RequestKey | None:
    """Returns the key of a part of a request."""
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
