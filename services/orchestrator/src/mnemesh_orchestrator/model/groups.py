"""Groups: members, managers and the rules of their changes, and the sleeptime runs of partners."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id, require_id
from mnemesh_kit.text import require_json_object, require_line, require_searchable_fields, require_text
from mnemesh_types.messages import Message, Role
from mnemesh_types.provenance import Provenance

from mnemesh_orchestrator.model.agents import AgentType, MessageBuffer


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


DEFAULT_BUFFER: Final = MessageBuffer(most=30, least=15)
DEFAULT_MAX_STEPS: Final = 50
_MAX_CONCURRENT_RUNS: Final = 10_000


@dataclass(frozen=True, slots=True)
class TranscriptRange:
    """The messages of an agent from which the input of a sleeptime run is made when the run begins.

    The range holds the messages with sequence ids above `after` and up to `until`. For voice agents, those above
    `newer_after` stay in the agent's window, and a later range holds them again as older ones.
    """

    group_id: str
    agent_id: str
    after: int
    until: int
    newer_after: int | None = None


@dataclass(frozen=True, slots=True)
class SleeptimeTurn:
    """A completed turn of an agent with sleeptime partners.

    `messages` is the window of the turn's conversation without its system message. Their sequence ids are 0 if they
    are not known. `is_cut` is true if the window has a limited length: the oldest messages leave it.
    """

    agent_id: str
    messages: tuple[Message, ...]
    is_cut: bool = False

    @property
    def newest_sequence_id(self) -> int:
        """The newest sequence id of the window; 0 if none is known."""
        return max((message.sequence_id for message in self.messages), default=0)


@dataclass(frozen=True, slots=True)
class SleeptimeProgress:
    """The progress of a sleeptime group.

    `seen` is the newest sequence id of the manager's completed turns, `processed` the one up to which transcripts have
    its messages. `turns_counter` includes the turn that has just completed.
    """

    turns_counter: int
    seen: int
    processed: int
    last_turn_at: datetime | None = None
    last_sleeptime_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SleeptimeSettings:
    """The settings of an organization. `max_concurrent_runs` is None for the server's setting."""

    max_concurrent_runs: int | None = None


@dataclass(frozen=True, slots=True)
class SleeptimeTarget:
    """The group of sleeptime runs: by its id, or by the agent that manages it."""

    group_id: str | None = None
    agent_id: str | None = None


@dataclass(frozen=True, slots=True)
class MemberPreview:
    """The request that a member's model would get: JSON text without credentials."""

    agent_id: str
    request: str


@dataclass(frozen=True, slots=True)
class SleeptimePreview:
    """The input that `SleeptimeService.start` would send. The transcript is that of the first member."""

    transcript: str = ""
    message_count: int = 0
    members: tuple[MemberPreview, ...] = ()


def require_valid_settings(settings: SleeptimeSettings) -> SleeptimeSettings:
    """Returns the settings if they are valid. Raises InvalidArgument."""
    most = settings.max_concurrent_runs
    if most is not None and not 0 <= most <= _MAX_CONCURRENT_RUNS:
        field = "settings.max_concurrent_runs"
        raise InvalidArgument(f"{field} must be between 0 and {_MAX_CONCURRENT_RUNS:,}.", field=field)
    return settings


def range_after_turn(group: Group, progress: SleeptimeProgress, turn: SleeptimeTurn) -> TranscriptRange | None:
    """Returns the messages that the members process now, after a turn of the manager; None if they wait."""
    manager = group.manager
    if manager.type is ManagerType.VOICE_SLEEPTIME:
        return _range_before_cut(group, progress, turn)
    if progress.turns_counter % (manager.frequency or 1):
        return None
    return range_of_new(group, progress.processed, progress.seen)


def range_of_new(group: Group, processed: int, until: int) -> TranscriptRange | None:
    """Returns all messages that no transcript has yet, up to a sequence id; None if there are none."""
    if until <= processed:
        return None
    return TranscriptRange(group.id, group.manager.manager_agent_id or "", processed, until)


def _range_before_cut(group: Group, progress: SleeptimeProgress, turn: SleeptimeTurn) -> TranscriptRange | None:
    """Returns the messages that leave a voice agent's window at its next turn, and those that stay in it.

    The window of another agent is not cut. Of those, the messages that no transcript has as older ones count.
    """
    messages = turn.messages
    if not turn.is_cut:
        messages = tuple(message for message in messages if message.sequence_id > progress.processed)
    start = start_of_kept(messages, buffer_of(group.manager))
    leaves = max((message.sequence_id for message in messages[:start]), default=0)
    if leaves <= progress.processed:
        return None
    return TranscriptRange(group.id, turn.agent_id, progress.processed, max(progress.seen, leaves), newer_after=leaves)


def processed_by(range_: TranscriptRange) -> int:
    """Returns the sequence id after which the next range of the group begins."""
    return range_.until if range_.newer_after is None else range_.newer_after


def buffer_of(manager: ManagerConfig) -> MessageBuffer:
    """Returns the limits on the window of a voice agent."""
    most = DEFAULT_BUFFER.most if manager.max_message_buffer_length is None else manager.max_message_buffer_length
    least = DEFAULT_BUFFER.least if manager.min_message_buffer_length is None else manager.min_message_buffer_length
    return MessageBuffer(most, min(least, most))


def start_of_kept(messages: Sequence[Message], buffer: MessageBuffer) -> int:
    """Returns the index of the first message that stays in a window of limited length; 0 if all stay.

    The cut is at a user message, so that a call and its return stay together.

    Args:
        messages: The window without its system message.
        buffer: The limits.
    """
    if len(messages) <= buffer.most:
        return 0
    starts = [index for index, message in enumerate(messages) if message.role is Role.USER]
    least = len(messages) - buffer.least
    return next((index for index in starts if index >= least), max(starts, default=0))


def has_timers(manager: ManagerConfig) -> bool:
    """Returns whether the members also run after some time."""
    return manager.interval_seconds is not None or manager.inactivity_seconds is not None


def due_at(group: Group, progress: SleeptimeProgress) -> datetime | None:
    """Returns the time at which an interval or an inactivity starts the members; None without new messages."""
    if progress.seen <= progress.processed:
        return None
    manager, times = group.manager, []
    if manager.interval_seconds is not None:
        times.append((progress.last_sleeptime_at or group.created_at) + timedelta(seconds=manager.interval_seconds))
    if manager.inactivity_seconds is not None:
        times.append((progress.last_turn_at or group.created_at) + timedelta(seconds=manager.inactivity_seconds))
    return min(times, default=None)


MAX_AGENTS: Final = 100
"""The largest number of agents of a group, the manager included."""
_MAX_DESCRIPTION: Final = 100_000
_MAX_SHARED_BLOCKS: Final = 50
_MAX_TURNS: Final = 1_000
_MAX_TOKEN: Final = 200
_MAX_FREQUENCY: Final = 10_000
_MAX_STEPS: Final = 1_000
_MIN_SECONDS: Final = 60
_MAX_SECONDS: Final = 366 * 86_400
_MAX_BUFFER: Final = 10_000
_MIN_COUNT: Final = -1
"""The count before the first turn of a group whose members run after that turn."""
_MAX_COUNT: Final = 10**15
_CONFIG: Final = "group.manager_config"
_HAS_NO_MANAGER: Final = (ManagerType.ROUND_ROBIN, ManagerType.SWARM)


def require_valid_group(group: Group, changed: Collection[str] | None = None) -> Group:
    """Returns a group if its fields are valid.

    Args:
        changed: The names of the fields that an update sets. The others may break rules, because agents were deleted.
            None checks all.
    """
    require_text(group.description, "group.description", max_chars=_MAX_DESCRIPTION)
    if group.metadata is not None:
        require_json_object(group.metadata, "group.metadata")
    require_searchable_fields(group.provenance, "group.provenance.")
    _require_blocks(group.shared_block_ids)
    require_valid_manager(group.manager)
    require_valid_count(group.turns_counter, "group.turns_counter")
    field = "group.agent_ids"
    if not group.agent_ids and (changed is None or "agent_ids" in changed):
        raise InvalidArgument(f"{field} must name at least one agent.", field=field)
    for agent_id in group.agent_ids:
        require_id(agent_id, "agent", field)
    if len(set(group.agent_ids)) < len(group.agent_ids):
        raise InvalidArgument(f"{field} must name each agent once.", field=field)
    if group.manager.manager_agent_id in group.agent_ids:
        raise InvalidArgument(f"{field} must not name the manager.", field=field)
    if len(group.all_agent_ids) > MAX_AGENTS:
        raise InvalidArgument(f"{field} must name at most {MAX_AGENTS} agents, the manager included.", field=field)
    return group


def _require_blocks(block_ids: Sequence[str]) -> None:
    field = "group.shared_block_ids"
    for block_id in block_ids:
        require_id(block_id, "block", field)
    if len(set(block_ids)) < len(block_ids):
        raise InvalidArgument(f"{field} must name each block once.", field=field)
    if len(block_ids) > _MAX_SHARED_BLOCKS:
        raise InvalidArgument(f"{field} must name at most {_MAX_SHARED_BLOCKS} blocks.", field=field)


def require_valid_manager(config: ManagerConfig) -> ManagerConfig:
    """Returns the manager of a group if its fields are valid. Raises InvalidArgument."""
    path = f"{_CONFIG}.{config.type}"
    if config.type not in _HAS_NO_MANAGER:
        require_id(config.manager_agent_id or "", "agent", manager_field(config))
    _require_within(config.max_turns, 1, _MAX_TURNS, f"{path}.max_turns")
    if config.termination_token is not None:
        require_line(config.termination_token, f"{path}.termination_token", max_chars=_MAX_TOKEN)
    _require_within(config.frequency, 1, _MAX_FREQUENCY, f"{path}.sleeptime_agent_frequency")
    _require_duration(config.interval_seconds, f"{path}.interval")
    _require_duration(config.inactivity_seconds, f"{path}.inactivity")
    _require_within(config.max_steps, 1, _MAX_STEPS, f"{path}.max_steps")
    if config.type is ManagerType.VOICE_SLEEPTIME:
        _require_buffers(config, path)
    return config


def require_valid_count(count: int | None, field: str) -> int | None:
    """Returns the count of turns with which a sleeptime group begins if it is valid. Raises InvalidArgument."""
    _require_within(count, _MIN_COUNT, _MAX_COUNT, field)
    return count


def require_manager_type(config: ManagerConfig, type_: AgentType) -> None:
    """Raises InvalidArgument if an agent of this type cannot manage the group: only voice agents have short windows."""
    if config.type is ManagerType.VOICE_SLEEPTIME and type_ is not AgentType.VOICE_CONVO:
        field = manager_field(config)
        raise InvalidArgument(
            f"{field} must name an agent of the type {AgentType.VOICE_CONVO}. Use manager_config.sleeptime for others.",
            field=field,
        )


def _require_buffers(config: ManagerConfig, path: str) -> None:
    least, most = config.min_message_buffer_length, config.max_message_buffer_length
    _require_within(most, 2, _MAX_BUFFER, f"{path}.max_message_buffer_length")
    _require_within(least, 1, _MAX_BUFFER, f"{path}.min_message_buffer_length")
    # The error names the field that was set.
    name = "max_message_buffer_length" if least is None else "min_message_buffer_length"
    least = DEFAULT_BUFFER.least if least is None else least
    most = DEFAULT_BUFFER.most if most is None else most
    if least >= most:
        raise InvalidArgument(
            f"{path}.{name} does not fit: min_message_buffer_length, {least}, must be less than "
            f"max_message_buffer_length, {most}. Set both.",
            field=f"{path}.{name}",
        )


def _require_within(value: int | None, least: int, most: int, field: str) -> None:
    if value is not None and not least <= value <= most:
        raise InvalidArgument(f"{field} must be between {least} and {most:,}.", field=field)


def _require_duration(seconds: float | None, field: str) -> None:
    if seconds is not None and not _MIN_SECONDS <= seconds <= _MAX_SECONDS:
        raise InvalidArgument(f"{field} must be between one minute and 366 days.", field=field)


def require_valid_group_filter(filter_: GroupFilter) -> GroupFilter:
    """Returns the filter if groups can be searched with it. Raises InvalidArgument."""
    for group_id in filter_.group_ids:
        require_id(group_id, "group", "filter.group_ids")
    if filter_.agent_id is not None:
        require_id(filter_.agent_id, "agent", "filter.agent_id")
    return require_searchable_fields(filter_)
