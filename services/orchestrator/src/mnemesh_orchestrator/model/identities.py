"""Identities: the people and organizations that agents and blocks belong to, under keys of the client's own."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from mnemesh_orchestrator.model.agents import Provenance


class IdentityType(StrEnum):
    """What an identity stands for."""

    ORG = "org"
    USER = "user"
    OTHER = "other"


PropertyKind = Literal["text", "boolean", "integer", "number", "json"]


@dataclass(frozen=True, slots=True)
class IdentityProperty:
    """A typed value under a key; of kind "json" the text of a JSON value."""

    key: str
    kind: PropertyKind
    value: str | bool | int | float


@dataclass(frozen=True, slots=True)
class Identity:
    """One identity. Its key is unique within organization and project; a key stands once among its properties."""

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
    """Properties with those of `new` set, each in the place of the one so called, and those of `without` taken away."""
    by_key = {item.key: item for item in (*old, *new)}
    return tuple(item for key, item in by_key.items() if key not in without)
