"""The JSON of groups and identities."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

ManagerType = Literal["round_robin", "supervisor", "dynamic", "sleeptime", "voice_sleeptime", "swarm"]

IdentityType = Literal["org", "user", "other"]


class Group(msgspec.Struct, kw_only=True):
    """A group, with the settings of its manager."""

    id: str
    manager_type: str
    agent_ids: list[str]
    description: str
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    shared_block_ids: list[str] = []
    manager_agent_id: str | None = None
    termination_token: str | None = None
    max_turns: int | None = None
    sleeptime_agent_frequency: int | None = None
    turns_counter: int | None = None
    last_processed_message_id: str | None = None
    max_message_buffer_length: int | None = None
    min_message_buffer_length: int | None = None
    hidden: bool | None = None


class GroupManager(msgspec.Struct, kw_only=True):
    """The kind of a manager, and its settings. Those of other kinds are ignored."""

    manager_type: ManagerType
    manager_agent_id: str | None = None
    termination_token: str | None = None
    max_turns: int | None = None
    sleeptime_agent_frequency: int | None = None
    max_message_buffer_length: int | None = None
    min_message_buffer_length: int | None = None


class CreateGroup(msgspec.Struct, kw_only=True):
    """A group to create."""

    agent_ids: list[str]
    description: str
    manager_config: GroupManager | None = None
    project_id: str | None = None
    shared_block_ids: list[str] = []
    hidden: bool | None = None


class UpdateGroup(msgspec.Struct, kw_only=True):
    """Changes of a group. A field that is null or absent stays as it is."""

    agent_ids: list[str] | None = None
    description: str | None = None
    manager_config: GroupManager | None = None
    project_id: str | None = None
    shared_block_ids: list[str] | None = None


class ListGroups(msgspec.Struct, kw_only=True):
    """The query of a list of groups."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None
    manager_type: ManagerType | None = None
    project_id: str | None = None
    show_hidden_groups: bool = False


class GroupResult(msgspec.Struct, kw_only=True):
    """The result of a deletion."""

    message: str


def settings_of(manager: GroupManager) -> dict[str, Any]:
    """Returns the settings of a manager that a body has, by name."""
    names = (name for name in manager.__struct_fields__ if name != "manager_type")
    return {name: value for name in names if (value := getattr(manager, name)) is not None}


class Identity(msgspec.Struct, kw_only=True):
    """An identity."""

    id: str
    identifier_key: str
    name: str
    identity_type: str
    project_id: str | None = None
    organization_id: str | None = None
    agent_ids: list[str] = []
    block_ids: list[str] = []
    properties: list[dict[str, Any]] = []


class IdentityProperty(msgspec.Struct, kw_only=True):
    """A property. The type says how the value is read."""

    key: str
    value: Any
    type: Literal["string", "number", "boolean", "json"]


class CreateIdentity(msgspec.Struct, kw_only=True):
    """An identity to create, or to update by its key."""

    identifier_key: str
    name: str
    identity_type: IdentityType
    project_id: str | None = None
    agent_ids: list[str] | None = None
    block_ids: list[str] | None = None
    properties: list[IdentityProperty] | None = None


class UpdateIdentity(msgspec.Struct, kw_only=True):
    """Changes of an identity. A field that is null or absent stays as it is."""

    identifier_key: str | None = None
    name: str | None = None
    identity_type: IdentityType | None = None
    agent_ids: list[str] | None = None
    block_ids: list[str] | None = None
    properties: list[IdentityProperty] | None = None


class ListIdentities(msgspec.Struct, kw_only=True):
    """The query of a list of identities."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None
    name: str | None = None
    project_id: str | None = None
    identifier_key: str | None = None
    identity_type: IdentityType | None = None
