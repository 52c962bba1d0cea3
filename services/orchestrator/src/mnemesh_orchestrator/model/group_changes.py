"""Changes of groups that take effect in several services: what any process needs to finish or to undo one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from mnemesh_orchestrator.model.groups import BACKGROUND_TYPES, Group, GroupState, SharedAttachment


@dataclass(frozen=True, slots=True)
class GroupChange:
    """The creation, the update or the deletion of a group, planned before its first effect.

    The effects in the blocks service follow this order: the link between a sleeptime manager and its members, then
    the attachments that end, then those that begin. A failed change is undone completely.
    """

    id: str
    """The beginning of the ids of its requests."""
    group_id: str
    organization_id: str
    started_at: datetime
    subject_id: str
    before: Group | None = None
    """None creates the group."""
    after: Group | None = None
    """None deletes the group."""
    attaches: tuple[SharedAttachment, ...] = ()
    """Shared blocks for agents that do not hold them."""
    detaches: tuple[SharedAttachment, ...] = ()
    links: tuple[str, ...] | None = None
    """The agents that the group links afterwards, manager first, if they change; none ends the link."""
    by_link: tuple[SharedAttachment, ...] = ()
    """Blocks of the manager that the link attaches to new members."""
    start_sequence_id: int | None = None
    """For a group with a new sleeptime manager: the manager's newest message before the change."""
    turns_counter: int | None = None
    """The count of turns that the change sets; None sets none."""
    is_undone: bool = False
    """The change failed, and its effects are being removed."""
    method: str | None = None
    request_id: str | None = None

    @property
    def linked_before(self) -> tuple[str, ...]:
        """The agents that the group links before the change."""
        return linked_agents(self.before)

    @property
    def has_effects(self) -> bool:
        """Returns whether the change affects the blocks service."""
        return bool(self.attaches or self.detaches) or self.links is not None

    @property
    def reads_memory(self) -> bool:
        """Returns whether the plan depends on the blocks that the agents hold."""
        return bool(set(_shared(self.after)) - set(_shared(self.before))) or (
            linked_agents(self.after) not in ((), self.linked_before)
        )

    @property
    def joining(self) -> tuple[str, ...]:
        """The agents that are in the group after the change only."""
        before = () if self.before is None else self.before.all_agent_ids
        after = () if self.after is None else self.after.all_agent_ids
        return tuple(agent_id for agent_id in after if agent_id not in before)

    @property
    def has_new_manager(self) -> bool:
        """Returns whether the manager or its settings change."""
        return self.after is not None and (self.before is None or self.before.manager != self.after.manager)

    @property
    def has_new_background_manager(self) -> bool:
        """Returns whether an agent becomes the manager of a sleeptime group."""
        return background_manager(self.after) not in (None, background_manager(self.before))


@dataclass(frozen=True, slots=True)
class UnfinishedGroup:
    """A group with a change in progress."""

    group: Group
    state: GroupState
    change: GroupChange


def definition(group: Group) -> Group:
    """Returns a group without what its runs count."""
    return replace(group, turns_counter=0, last_processed_message_id=None, last_sleeptime_at=None)


def background_manager(group: Group | None) -> str | None:
    """Returns the id of the manager of a sleeptime group; None for other groups."""
    if group is None or group.manager.type not in BACKGROUND_TYPES:
        return None
    return group.manager.manager_agent_id


def linked_agents(group: Group | None) -> tuple[str, ...]:
    """Returns the agents of a sleeptime group, manager first; none for other groups."""
    manager = background_manager(group)
    return () if group is None or manager is None else (manager, *group.agent_ids)


def with_plan(change: GroupChange, held: Mapping[str, Collection[str]]) -> GroupChange:
    """Returns an update or a creation with its effects on the blocks service.

    Args:
        change: The change, with the groups before and after it.
        held: The ids of the blocks that the agents hold now. Agents without an entry do not exist any more.
    """
    shared_before, shared_after = _shared(change.before), _shared(change.after)
    made = () if change.before is None else change.before.attachments
    attaches = tuple(
        pair
        for pair in shared_after
        if pair not in shared_before and pair.agent_id in held and pair.block_id not in held[pair.agent_id]
    )
    kept = tuple(pair for pair in made if pair in shared_after)
    return replace(
        _with_links(change, held),
        after=None if change.after is None else replace(change.after, attachments=(*kept, *attaches)),
        attaches=attaches,
        detaches=tuple(pair for pair in made if pair not in shared_after),
    )


def _shared(group: Group | None) -> dict[SharedAttachment, None]:
    if group is None:
        return {}
    pairs = (SharedAttachment(agent, block) for agent in group.all_agent_ids for block in group.shared_block_ids)
    return dict.fromkeys(pairs)


def _with_links(change: GroupChange, held: Mapping[str, Collection[str]]) -> GroupChange:
    wanted = linked_agents(change.after)
    if wanted == change.linked_before:
        return change
    links = tuple(agent_id for agent_id in wanted if agent_id in held)
    if len(links) < 2 or links[0] != wanted[0]:
        return replace(change, links=())
    by_link = tuple(
        SharedAttachment(member, block_id)
        for member in links[1:]
        if member not in change.linked_before
        for block_id in held[links[0]]
        if block_id not in held[member]
    )
    return replace(change, links=links, by_link=by_link)
