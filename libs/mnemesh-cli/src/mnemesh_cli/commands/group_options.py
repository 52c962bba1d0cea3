"""The options of `mnemesh groups create` and `update`, and the fields of a group that they set."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from mnemesh.agents.v1 import groups_pb2
from mnemesh_client.groups import manager_field_names
from mnemesh_client.mnemesh import Mnemesh

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")


class GroupType(StrEnum):
    """The types of managers, as the command line names them."""

    ROUND_ROBIN = "round-robin"
    SUPERVISOR = "supervisor"
    DYNAMIC = "dynamic"
    SLEEPTIME = "sleeptime"
    VOICE_SLEEPTIME = "voice-sleeptime"
    SWARM = "swarm"

    @property
    def field(self) -> str:
        """The field of ManagerConfig."""
        return self.value.replace("-", "_")


ManagerOption = Annotated[
    str | None,
    typer.Option(help="Id or name of the managing agent. For supervisor, dynamic, sleeptime and voice-sleeptime."),
]
MaxTurnsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Turns per message. For round-robin and dynamic.", show_default="one per member"),
]
TokenOption = Annotated[str | None, typer.Option(help="Words that end the round. For dynamic.", show_default="DONE!")]
FrequencyOption = Annotated[
    int | None,
    typer.Option(min=1, help="Members run after every n-th turn of the manager. For sleeptime.", show_default="1"),
]
IntervalOption = Annotated[
    str | None,
    typer.Option(help="Members run at least this often, such as 30m or 12h, if there are new messages. For sleeptime."),
]
InactivityOption = Annotated[
    str | None,
    typer.Option(help="Members run when the manager has had no turn for this time, such as 10m. For sleeptime."),
]
MaxStepsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Steps of a member's run. For sleeptime and voice-sleeptime.", show_default="50"),
]
MaxBufferOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Messages in the window above which older ones are passed on. For voice-sleeptime.",
        show_default="30",
    ),
]
MinBufferOption = Annotated[
    int | None, typer.Option(min=1, help="Messages that stay in the window. For voice-sleeptime.", show_default="15")
]
MetadataOption = Annotated[str | None, typer.Option(help="A JSON object.")]
SharedBlockOption = Annotated[
    list[str] | None,
    typer.Option("--shared-block", help="Id of a block that all agents of the group share. Can be repeated."),
]

_FIELDS: Final = {
    "manager": "manager_agent_id",
    "max_turns": "max_turns",
    "termination_token": "termination_token",
    "frequency": "sleeptime_agent_frequency",
    "interval": "interval",
    "inactivity": "inactivity",
    "max_steps": "max_steps",
    "max_buffer": "max_message_buffer_length",
    "min_buffer": "min_message_buffer_length",
}
"""Options of the manager and the fields of the manager configs that they set."""
GROUP_FIELDS: Final = ("description", "metadata")
"""Options with the name of the field of Group that they set."""


async def manager_fields(mnemesh: Mnemesh, group_type: str, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a manager config that options set.

    Args:
        mnemesh: the client, to find the manager by its name.
        group_type: the field of ManagerConfig.
        options: the values of the options by parameter name; None is not set.

    Raises:
        typer.BadParameter: an option does not belong to the type, or its value is invalid.
    """
    fields: dict[str, Any] = {}
    for option, value in options.items():
        if value is None:
            continue
        fields[manager_field(group_type, option)] = (
            _duration(option, value) if option in ("interval", "inactivity") else value
        )
    if (manager := fields.get("manager_agent_id")) is not None:
        fields["manager_agent_id"] = (await mnemesh.agents.find(manager)).id
    return fields


def manager_field(group_type: str, option: str) -> str:
    """Returns the field of a manager config that an option sets.

    Raises:
        typer.BadParameter: the type has no such field.
    """
    field = _FIELDS[option]
    if field not in manager_field_names(group_type):
        configs = groups_pb2.ManagerConfig.DESCRIPTOR.fields_by_name
        types = [name.replace("_", "-") for name in configs if field in manager_field_names(name)]
        problem = f"A {group_type.replace('_', '-')} group has no such setting. It is for {', '.join(types)}."
        raise typer.BadParameter(problem, param_hint=option_name(option))
    return field


def cleared_fields(group_type: str, names: list[str]) -> dict[str, None]:
    """Returns the fields that `--clear` names, each with None.

    Raises:
        typer.BadParameter: there is no such option, or the type has no such field.
    """
    fields: dict[str, None] = {}
    for name in names:
        option = name.removeprefix("--").replace("-", "_")
        if option in GROUP_FIELDS:
            fields[option] = None
        elif option in _FIELDS and option != "manager":
            fields[manager_field(group_type, option)] = None
        else:
            known = ", ".join(each.replace("_", "-") for each in (*GROUP_FIELDS, *_FIELDS) if each != "manager")
            raise typer.BadParameter(f"{name!r} cannot be cleared. Use one of {known}.", param_hint="--clear")
    return fields


def require_json_object(text: str | None) -> str | None:
    """Returns the value of `--metadata`. Raises BadParameter if it is no JSON object."""
    if text is not None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise typer.BadParameter(f"{text!r} is not a JSON object.", param_hint="--metadata")
    return text


def option_name(parameter: str) -> str:
    """Returns an option as it is typed."""
    return f"--{parameter.replace('_', '-')}"


def _duration(option: str, text: str) -> timedelta:
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is not a duration. Write a number and a unit: 90s, 30m, 12h or 1d.",
            param_hint=option_name(option),
        )
    return timedelta(seconds=float(match[1]) * _UNITS[match[2]])
