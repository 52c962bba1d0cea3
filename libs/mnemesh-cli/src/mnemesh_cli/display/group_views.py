"""The display of groups and of their messages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from typing import Any, Final

from google.protobuf import duration_pb2
from mnemesh.agents.v1 import groups_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.display.records import local_time_text, print_fields
from mnemesh_client.groups import Group
from mnemesh_client.inputs import text_of
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import NotFound

_DEFAULTS: Final = {
    "max_turns": "one per member",
    "termination_token": "DONE!",
    "sleeptime_agent_frequency": "1",
    "interval": "none",
    "inactivity": "none",
    "max_steps": "50",
    "max_message_buffer_length": "30",
    "min_message_buffer_length": "15",
}
_LABELS: Final = {
    "sleeptime_agent_frequency": "frequency",
    "max_message_buffer_length": "max buffer",
    "min_message_buffer_length": "min buffer",
}


class AgentNames:
    """Names of agents, each read once. An agent that does not exist any more is shown by its id."""

    def __init__(self, mnemesh: Mnemesh) -> None:
        self._mnemesh = mnemesh
        self._names: dict[str, str] = {}

    async def name(self, agent_id: str) -> str:
        """Returns the name of an agent, or its id if it was deleted."""
        if agent_id not in self._names:
            try:
                self._names[agent_id] = (await self._mnemesh.agents.get(agent_id)).name
            except NotFound:
                self._names[agent_id] = agent_id
        return self._names[agent_id]

    async def label(self, agent_id: str) -> str:
        """Returns the name and the id of an agent."""
        name = await self.name(agent_id)
        return f"{agent_id} (deleted)" if name == agent_id else f"{name} ({agent_id})"


async def print_group(mnemesh: Mnemesh, group: Group) -> None:
    """Prints the members and settings of a group."""
    names = AgentNames(mnemesh)
    manager = group.manager_agent_id
    fields = [
        ("id", group.id),
        ("description", group.description),
        ("type", group.manager_type.replace("_", "-")),
        ("manager", "" if manager is None else await names.label(manager)),
        *[("member", await names.label(member)) for member in group.agent_ids],
        *setting_rows(group.proto),
    ]
    print_fields(fields)


def setting_rows(group: groups_pb2.Group) -> Iterator[tuple[str, str]]:
    """Yields the settings and counters of a group as labels and values, each default with a mark."""
    kind = group.manager_config.WhichOneof("config") or "round_robin"
    manager = getattr(group.manager_config, kind)
    for field in manager.DESCRIPTOR.fields:
        if field.name in _DEFAULTS:
            label = _LABELS.get(field.name, field.name.replace("_", " "))
            is_set = manager.HasField(field.name)
            value = _setting(getattr(manager, field.name)) if is_set else f"{_DEFAULTS[field.name]} (default)"
            yield label, value
    if group.shared_block_ids:
        yield "shared blocks", ", ".join(group.shared_block_ids)
    if group.HasField("metadata"):
        yield "metadata", group.metadata
    if group.hidden:
        yield "hidden", "yes"
    if group.HasField("turns_counter"):
        yield "turns", str(group.turns_counter)
        last = group.last_sleeptime.ToDatetime(UTC) if group.HasField("last_sleeptime") else None
        yield "last sleeptime", local_time_text(last) or "never"
    yield "created", local_time_text(group.create_time.ToDatetime(UTC))


def role_name(message: message_pb2.Message) -> str:
    """Returns the role of a message in lower case."""
    return message_pb2.Role.Name(message.role).removeprefix("ROLE_").lower()


def message_text(message: message_pb2.Message) -> str:
    """Returns the text, the calls and the results in a message, in one line."""
    parts = [text_of(message.content)]
    parts += [f"▸ {call.name}({call.arguments})" for call in message.tool_calls]
    parts += [f"{item.name}: {text_of(item.content)}" for item in message.tool_returns]
    return " ".join(" ".join(parts).split())


def _setting(value: Any) -> str:
    if isinstance(value, duration_pb2.Duration):
        return f"{value.ToTimedelta()}"
    return str(value)
