"""Identities: the owners of agents and blocks, as clients know them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

IdentityType = Literal["org", "user", "other"]


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
