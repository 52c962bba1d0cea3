"""The rules that the fields of a group follow."""

from collections.abc import Collection, Sequence
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.text import require_json_object, require_line, require_text

from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.filters import require_searchable_fields
from mnemesh_orchestrator.model.groups import Group, GroupFilter, ManagerConfig, ManagerType, manager_field
from mnemesh_orchestrator.model.sleeptime import DEFAULT_BUFFER

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
        group: The group.
        changed: The names of the fields that an update sets. The others may break rules, because agents were deleted.
            None checks all.

    Raises:
        InvalidArgument: A field breaks its rule. Metadata: field, such as `group.agent_ids`.
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
