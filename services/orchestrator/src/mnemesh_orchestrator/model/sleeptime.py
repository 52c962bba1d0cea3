"""Sleeptime runs: when they start, and which messages of the manager each of them processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_types.messages import Message, Role

from mnemesh_orchestrator.model.agents import MessageBuffer
from mnemesh_orchestrator.model.groups import Group, ManagerConfig, ManagerType

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
