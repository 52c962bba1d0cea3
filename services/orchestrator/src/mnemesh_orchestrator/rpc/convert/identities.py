"""Identities between the domain and the contract, checked field by field."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from mnemesh.agents.v1 import identities_pb2 as pb
from mnemesh.agents.v1 import identities_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.time import timestamp_to_proto
from mnemesh_types.convert import provenance_to_proto
from mnemesh_types.provenance import Provenance

from mnemesh_orchestrator.model.identities import Identity, IdentityFilter, IdentityProperty, IdentityType
from mnemesh_orchestrator.rpc.convert.settings import present, require_json, require_known, require_plain

_TYPES: Final = {kind: pb.IdentityType.Value(f"IDENTITY_TYPE_{kind.name}") for kind in IdentityType}
_TYPES_BACK: Final = {number: kind for kind, number in _TYPES.items()}
ORDERS: Final = {
    rpc.IDENTITY_ORDER_BY_UNSPECIFIED: "created_at",
    rpc.IDENTITY_ORDER_BY_CREATE_TIME: "created_at",
    rpc.IDENTITY_ORDER_BY_UPDATE_TIME: "updated_at",
    rpc.IDENTITY_ORDER_BY_NAME: "name",
}
_CARRIED: Final = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
_LONGEST: Final = 1_000
_LONGEST_VALUE: Final = 100_000
_MOST: Final = 1_000


def identity_to_proto(identity: Identity, agent_ids: Sequence[str] = (), block_ids: Sequence[str] = ()) -> pb.Identity:
    """An identity, with what a view asks for."""
    return pb.Identity(
        id=identity.id,
        identifier_key=identity.identifier_key,
        name=identity.name,
        type=_TYPES[identity.type],
        properties=[_property_to_proto(item) for item in identity.properties],
        agent_ids=agent_ids,
        block_ids=block_ids,
        create_time=timestamp_to_proto(identity.created_at),
        update_time=timestamp_to_proto(identity.updated_at),
        provenance=provenance_to_proto(identity.provenance),
    )


def _property_to_proto(item: IdentityProperty) -> pb.IdentityProperty:
    value: dict[str, Any] = {item.kind: item.value}
    return pb.IdentityProperty(key=item.key, **value)


def draft_from_proto(given: pb.Identity) -> Identity:
    """What a client wants made; its id, organization and times are yet to be given.

    Raises:
        InvalidArgument: naming the field.
    """
    nobody = datetime.fromtimestamp(0, UTC)
    blank = Identity("", "", "", "", IdentityType.OTHER, nobody, nobody)
    draft: Identity = blank
    for path in ("identifier_key", "name", "type", "properties"):
        draft = CHANGES[path](given, draft)
    return replace(draft, provenance=Provenance(**present(given.provenance, *_CARRIED)))


def agents_from_proto(given: Sequence[str], field: str = "identity.agent_ids") -> tuple[str, ...]:
    """Ids of agents, each once."""
    return _ids(given, "agent", field)


def blocks_from_proto(given: Sequence[str], field: str = "identity.block_ids") -> tuple[str, ...]:
    """Ids of blocks, each once."""
    return _ids(given, "block", field)


def properties_from_proto(
    given: Sequence[pb.IdentityProperty], field: str
) -> tuple[tuple[IdentityProperty, ...], tuple[str, ...]]:
    """Properties that have a value, and the keys of those that have none; of one key the last counts.

    Raises:
        InvalidArgument: naming the property.
    """
    if len(given) > _MOST:
        raise InvalidArgument(f"At most {_MOST} properties.", field=field)
    found: dict[str, IdentityProperty | None] = {}
    for place, item in enumerate(given):
        name = f"{field}[{place}]"
        found[_text(item.key, f"{name}.key")] = _property(item, name)
    return tuple(item for item in found.values() if item is not None), tuple(
        key for key, item in found.items() if item is None
    )


def filter_from_proto(given: rpc.IdentityFilter) -> IdentityFilter:
    """Which identities a list looks at; its block is not part of it.

    Raises:
        InvalidArgument: naming the field.
    """
    texts = present(given, "identifier_key", "name", "name_search", "project_id")
    ids = [require_id(identity_id, "identity", "filter.identity_ids") for identity_id in given.identity_ids]
    return IdentityFilter(
        identity_ids=tuple(ids) or None,
        **{name: require_plain(text, f"filter.{name}") for name, text in texts.items()},
        types=tuple(require_known(_TYPES_BACK, kind, "filter.types") for kind in given.types),
        agent_id=require_id(given.agent_id, "agent", "filter.agent_id") if given.HasField("agent_id") else None,
    )


def _ids(given: Sequence[str], kind: str, field: str) -> tuple[str, ...]:
    if len(given) > _MOST:
        raise InvalidArgument(f"At most {_MOST} ids.", field=field)
    return tuple(dict.fromkeys(require_id(item, kind, field) for item in given))


def _text(given: str, field: str) -> str:
    if not 0 < len(require_plain(given, field)) <= _LONGEST:
        raise InvalidArgument(f"{field} must have 1 to {_LONGEST} characters.", field=field)
    return given


def _property(item: pb.IdentityProperty, field: str) -> IdentityProperty | None:
    kind = item.WhichOneof("value")
    if kind is None:
        return None
    value: Any = getattr(item, kind)
    if isinstance(value, str) and len(require_plain(value, f"{field}.{kind}")) > _LONGEST_VALUE:
        raise InvalidArgument(f"{field}.{kind} is longer than {_LONGEST_VALUE} characters.", field=f"{field}.{kind}")
    if kind == "json":
        require_json(value, f"{field}.json")
    if kind == "number" and value - value != 0:
        raise InvalidArgument(f"{field}.number must be finite.", field=f"{field}.number")
    return IdentityProperty(item.key, kind, value)


def _typed(given: pb.Identity, identity: Identity) -> Identity:
    if given.type == pb.IDENTITY_TYPE_UNSPECIFIED:
        raise InvalidArgument("identity.type is required.", field="identity.type")
    return replace(identity, type=require_known(_TYPES_BACK, given.type, "identity.type"))


def _carried(name: str) -> Callable[[pb.Identity, Identity], Identity]:
    def change(given: pb.Identity, identity: Identity) -> Identity:
        value: dict[str, Any] = {name: present(given.provenance, name).get(name)}
        return replace(identity, provenance=replace(identity.provenance, **value))

    return change


CHANGES: Final[Mapping[str, Callable[[pb.Identity, Identity], Identity]]] = {
    "identifier_key": lambda given, identity: replace(
        identity, identifier_key=_text(given.identifier_key, "identity.identifier_key")
    ),
    "name": lambda given, identity: replace(identity, name=_text(given.name, "identity.name")),
    "type": _typed,
    "properties": lambda given, identity: replace(
        identity, properties=properties_from_proto(given.properties, "identity.properties")[0]
    ),
    **{f"provenance.{name}": _carried(name) for name in _CARRIED},
}
"""Paths of an update mask, and the change of each; those of agents and blocks are not of the record."""
