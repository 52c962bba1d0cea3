"""Identities: people and organizations that agents and blocks belong to, under keys that the client chose."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_json, require_text
from mnemesh_types.provenance import Provenance

_MAX_TEXT: Final = 1_000
_MAX_VALUE: Final = 100_000
_MAX_ITEMS: Final = 1_000


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


@dataclass(frozen=True, slots=True)
class PropertyChange:
    """A change of one property of an identity. None removes the property."""

    key: str
    property: IdentityProperty | None


class IdentityOrder(StrEnum):
    """The keys that lists of identities can be sorted by."""

    CREATED_AT = "created_at"
    UPDATED_AT = "updated_at"
    NAME = "name"


def changed_properties(
    properties: Sequence[IdentityProperty], changes: Sequence[PropertyChange]
) -> tuple[IdentityProperty, ...]:
    """Returns the properties after the changes. A changed property keeps its position."""
    by_key: dict[str, IdentityProperty | None] = {item.key: item for item in properties}
    by_key.update({change.key: change.property for change in changes})
    return tuple(item for item in by_key.values() if item is not None)


def require_valid_identity(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns new values of the fields of an identity if each follows its rule."""
    for name in ("identifier_key", "name"):
        if name in values:
            require_text(values[name], f"identity.{name}", min_chars=1, max_chars=_MAX_TEXT)
    if "properties" in values:
        changes = [PropertyChange(item.key, item) for item in values["properties"]]
        require_valid_properties(changes, "identity.properties")
    return values


def require_valid_properties(changes: Sequence[PropertyChange], field: str) -> Sequence[PropertyChange]:
    """Returns the changes of properties if each follows the rules."""
    if len(changes) > _MAX_ITEMS:
        raise InvalidArgument(f"{field} must have at most {_MAX_ITEMS:,} properties.", field=field)
    for index, change in enumerate(changes):
        require_text(change.key, f"{field}[{index}].key", min_chars=1, max_chars=_MAX_TEXT)
        if change.property is not None:
            _require_valid_value(change.property, f"{field}[{index}].{change.property.kind}")
    return changes


def require_valid_targets(ids: Sequence[str] | None, field: str) -> Sequence[str] | None:
    """Returns the ids that an identity is to be attached to. Raises InvalidArgument if there are too many."""
    if ids is not None and len(ids) > _MAX_ITEMS:
        raise InvalidArgument(f"{field} must have at most {_MAX_ITEMS:,} ids.", field=field)
    return ids


def _require_valid_value(item: IdentityProperty, field: str) -> None:
    if isinstance(item.value, str):
        require_text(item.value, field, max_chars=_MAX_VALUE)
        if item.kind == "json":
            require_json(item.value, field)
    if isinstance(item.value, float) and not math.isfinite(item.value):
        raise InvalidArgument(f"{field} must be finite.", field=field)


@dataclass(frozen=True, slots=True)
class IdentityFilter:
    """The conditions of a list or a count; an identity must meet all that are set."""

    identity_ids: tuple[str, ...] | None = None
    identifier_key: str | None = None
    name: str | None = None
    name_search: str | None = None
    types: tuple[IdentityType, ...] = ()
    project_id: str | None = None
    agent_id: str | None = None
