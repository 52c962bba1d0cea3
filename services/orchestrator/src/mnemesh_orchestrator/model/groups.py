"""Groups of agents, their managers and plans, and changes of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from mnemesh_kit.ids import derive_id
from mnemesh_types.provenance import Provenance


class ManagerType(StrEnum):
    """The kind of manager of a group."""

    ROUND_ROBIN = "round_robin"
    SUPERVISOR = "supervisor"
    DYNAMIC = "dynamic"
    SLEEPTIME = "sleeptime"
    VOICE_SLEEPTIME = "voice_sleeptime"
    SWARM = "swarm"


BACKGROUND_TYPES = frozenset({ManagerType.SLEEPTIME, ManagerType.VOICE_SLEEPTIME})
"""The kinds of groups whose members work in the background of the manager."""


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """The manager of a group. Only the fields of its type are set; None takes the default."""

    type: ManagerType = ManagerType.ROUND_ROBIN
    manager_agent_id: str | None = None
    max_turns: int | None = None
    """Round robin and dynamic: turns per run; None is one per member."""
    termination_token: str | None = None
    """Dynamic: the words that end the run; None is "DONE!"."""
    frequency: int | None = None
    """Sleeptime: the members run after every n-th turn; None is every turn."""
    interval_seconds: float | None = None
    inactivity_seconds: float | None = None
    max_steps: int | None = None
    """Sleeptime and voice sleeptime: the limit on the steps of a member's run; None is 50."""
    max_message_buffer_length: int | None = None
    min_message_buffer_length: int | None = None


def manager_field(config: ManagerConfig) -> str:
    """Returns the path of the manager's id in a Group of the contract, for errors."""
    return f"group.manager_config.{config.type}.manager_agent_id"


class GroupState(StrEnum):
    """The state of a group. CREATING groups are invisible; an UPDATING one is shown as it was before."""

    CREATING = "creating"
    ACTIVE = "active"
    UPDATING = "updating"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class SharedAttachment:
    """A shared block that a group attached to one of its agents. The agent did not hold the block before."""

    agent_id: str
    block_id: str


def group_conversation_id(group_id: str) -> str:
    """Returns the id of the queue of a group's runs."""
    return derive_id("conv", group_id)


@dataclass(frozen=True, slots=True)
class Group:
    """Agents that answer together, or that work in the background of one of them."""

    id: str
    organization_id: str
    created_at: datetime
    updated_at: datetime
    description: str = ""
    agent_ids: tuple[str, ...] = ()
    """The members in order, without the manager."""
    manager: ManagerConfig = ManagerConfig()
    shared_block_ids: tuple[str, ...] = ()
    attachments: tuple[SharedAttachment, ...] = ()
    """The attachments that end when the agent leaves or the group is deleted."""
    hidden: bool = False
    metadata: str | None = None
    provenance: Provenance = field(default_factory=Provenance)
    turns_counter: int = 0
    """Sleeptime: the count with which the group began, and one for each completed turn of the manager."""
    last_processed_message_id: str | None = None
    last_sleeptime_at: datetime | None = None
    revision: int = 1

    @property
    def conversation_id(self) -> str:
        """The id of the queue of the group's runs."""
        return group_conversation_id(self.id)

    @property
    def all_agent_ids(self) -> tuple[str, ...]:
        """The members and the manager."""
        manager = self.manager.manager_agent_id
        return self.agent_ids if manager is None else (*self.agent_ids, manager)


@dataclass(frozen=True, slots=True)
class Speaker:
    """An agent of a group run, as it was when the run started."""

    agent_id: str
    name: str
    description: str = ""


class TurnOutcome(StrEnum):
    """The outcome of the turn of an agent in a group run."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class MemberTurn:
    """A turn of a group run that has ended. The turns of a run are numbered from 1, the manager's included."""

    number: int
    agent_id: str
    outcome: TurnOutcome = TurnOutcome.COMPLETED
    words: tuple[str, ...] = ()
    """The texts that the agent said to the user, in order."""
    is_selection: bool = False
    """The manager selected the next speaker."""
    has_received: bool = True
    """The agent's window has the input of the turn."""

    @property
    def completed(self) -> bool:
        """True if the turn completed."""
        return self.outcome is TurnOutcome.COMPLETED


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The settings of a group run. They are stored with the run and do not change while it runs."""

    group_id: str
    manager: ManagerConfig
    members: tuple[Speaker, ...]
    manager_name: str | None = None
    completed: tuple[MemberTurn, ...] = ()
    """The turns that earlier attempts at the same input completed. They are not repeated."""


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """The conditions of a list or a count; a group must meet all that are set."""

    group_ids: tuple[str, ...] = ()
    manager_types: Sequence[ManagerType] = ()
    agent_id: str | None = None
    """A member or the manager."""
    hidden: bool | None = None
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None


class GroupOrder(StrEnum):
    """The keys that lists of groups can be sorted by."""

    CREATED_AT = "created_at"
    UPDATED_AT = "updated_at"


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
