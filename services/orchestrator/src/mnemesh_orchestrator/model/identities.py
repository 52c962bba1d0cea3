"""Identities: people and organizations that agents and blocks belong to, under keys that the client chose."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from mnemesh_types.provenance import Provenance


class IdentityType(StrEnum):
    """The kind of an identity."""

    ORG = "org"
    USER = "user"
    OTHER = "other"


PropertyKind = Literal["text", "boolean", "integer", "number", "json"]


@dataclass(frozen=True, slots=True)
class IdentityProperty:
    """A typed value under a key. A value of kind "json" is JSON text."""

    key: str
    kind: PropertyKind
    value: str | bool | int | float


@dataclass(frozen=True, slots=True)
class Identity:
    """An identity. Its key is unique within organization and project. Each property key occurs once."""

    id: str
    organization_id: str
    identifier_key: str
    name: str
    type: IdentityType
    created_at: datetime
    updated_at: datetime
    properties: tuple[IdentityProperty, ...] = ()
    provenance: Provenance = field(default_factory=Provenance)


def merged(
    old: tuple[IdentityProperty, ...], new: tuple[IdentityProperty, ...], without: tuple[str, ...] = ()
) -> tuple[IdentityProperty, ...]:
    """Returns `old` with the properties of `new` set in place, and without the keys in `without`."""
    by_key = {item.key: item for item in (*old, *new)}
    return tuple(item for key, item in by_key.items() if key not in without)


@dataclass(frozen=True, slots=True)
class IdentityFilter:
    """Which identities; everything that is given must hold."""

    identity_ids: tuple[str, ...] | None = None
    identifier_key: str | None = None
    name: str | None = None
    name_search: str | None = None
    types: tuple[IdentityType, ...] = ()
    project_id: str | None = None
    agent_id: str | None = None
