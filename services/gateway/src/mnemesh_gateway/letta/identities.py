"""Identities: create, upsert, retrieve, list, count, update, delete."""

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec
from mnemesh.agents.v1 import identities_pb2 as identities_pb
from mnemesh.agents.v1 import identities_service_pb2 as rpc
from mnemesh_letta.convert.values import (
    IDENTITY_TYPE_NAMES,
    IDENTITY_TYPES,
    fill,
    json_text,
    json_value,
    set_present,
    shown,
)

from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.letta.mesh import Mesh, PageQuery, list_page
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations, read

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


class UpdateIdentity(msgspec.Struct, kw_only=True):
    """Changes of an identity. A field that is null or absent stays as it is."""

    identifier_key: str | None = None
    name: str | None = None
    identity_type: IdentityType | None = None
    agent_ids: list[str] | None = None
    block_ids: list[str] | None = None
    properties: list[IdentityProperty] | None = None


class CreateIdentity(UpdateIdentity, kw_only=True):
    """An identity to create, or to update by its key."""

    identifier_key: str
    name: str
    identity_type: IdentityType
    project_id: str | None = None


class ListIdentities(PageQuery, kw_only=True):
    """The query of a list of identities."""

    name: str | None = None
    project_id: str | None = None
    identifier_key: str | None = None
    identity_type: IdentityType | None = None


_KINDS: Final = {"text": "string", "boolean": "boolean", "integer": "number", "number": "number", "json": "json"}


def identity_from_proto(identity: identities_pb.Identity) -> Identity:
    kind, properties = (
        IDENTITY_TYPE_NAMES.get(identity.type, "other"),
        [_property(item) for item in identity.properties],
    )
    return shown(Identity, identity, identity_type=kind, properties=properties)


def identity_to_proto(body: UpdateIdentity, identity: identities_pb.Identity) -> list[str]:
    """Sets what a body has; returns the paths. Raises ValidationFailed if a property has another type than it says."""
    paths = fill(identity, body)
    if body.identity_type is not None:
        identity.type = IDENTITY_TYPES[body.identity_type]
        paths.append("type")
    if body.properties is not None:
        identity.properties.extend(properties_to_proto(body.properties, "body", "properties"))
        paths.append("properties")
    return paths


def properties_to_proto(given: Iterable[IdentityProperty], *loc: str) -> list[identities_pb.IdentityProperty]:
    """Returns properties. Raises ValidationFailed if a value has another type than the property says."""
    return [_property_to_proto(item, *loc, number) for number, item in enumerate(given)]


def _property_to_proto(item: IdentityProperty, *loc: str | int) -> identities_pb.IdentityProperty:
    match item.type, item.value:
        case "string", str(text):
            return identities_pb.IdentityProperty(key=item.key, text=text)
        case "boolean", bool(value):
            return identities_pb.IdentityProperty(key=item.key, boolean=value)
        case "number", int(value) if not isinstance(item.value, bool):
            return identities_pb.IdentityProperty(key=item.key, integer=value)
        case "number", float(value):
            return identities_pb.IdentityProperty(key=item.key, number=value)
        case "json", value if value is not None:
            return identities_pb.IdentityProperty(key=item.key, json=json_text(value) or "null")
    raise invalid_field(f"Input should be a valid {item.type}", *loc, "value")


def _property(item: identities_pb.IdentityProperty) -> dict[str, Any]:
    kind = item.WhichOneof("value") or "text"
    value = getattr(item, kind)
    return {"key": item.key, "type": _KINDS[kind], "value": json_value(value) if kind == "json" else value}


operations = Operations()
_VIEW: Final = rpc.IdentityView(agent_ids=True, block_ids=True)


@operations.get("/identities/")
async def list_identities(call: Call[ListIdentities, None]) -> list[Identity]:
    """Lists identities, newest first."""
    query = call.query
    request = rpc.ListIdentitiesRequest(filter=rpc.IdentityFilter(), view=_VIEW)
    request.filter.types.extend([IDENTITY_TYPES[query.identity_type]] if query.identity_type else ())
    set_present(
        request.filter, name_search=query.name, project_id=query.project_id, identifier_key=query.identifier_key
    )
    rows = await list_page(call.mesh.identities.ListIdentities, request, "identities", query, default="desc")
    return [identity_from_proto(row) for row in rows]


@operations.get("/identities/count")
async def count_identities(call: Call[NoQuery, None]) -> int:
    """Counts identities."""
    request = rpc.CountIdentitiesRequest(filter=rpc.IdentityFilter())
    return int((await read(call.mesh.identities.CountIdentities, request)).count)


@operations.post("/identities/")
async def create_identity(call: Call[NoQuery, CreateIdentity]) -> Identity:
    """Creates an identity."""
    request = rpc.CreateIdentityRequest()
    identity_to_proto(call.body, request.identity)
    made = (await call.write(call.mesh.identities.CreateIdentity, request)).identity
    return await read_identity(call.mesh, made.id)


@operations.put("/identities/")
async def upsert_identity(call: Call[NoQuery, CreateIdentity]) -> Identity:
    """Creates an identity, or updates the one with the same key, which keeps its id."""
    request = rpc.UpsertIdentityRequest()
    identity_to_proto(call.body, request.identity)
    made = (await call.write(call.mesh.identities.UpsertIdentity, request)).identity
    return await read_identity(call.mesh, made.id)


@operations.get("/identities/{identity_id}")
async def retrieve_identity(call: Call[NoQuery, None]) -> Identity:
    """Returns an identity."""
    return await read_identity(call.mesh, call.path["identity_id"])


@operations.patch("/identities/{identity_id}")
async def update_identity(call: Call[NoQuery, UpdateIdentity]) -> Identity:
    """Updates an identity. Lists of ids and of properties replace the earlier ones."""
    identity_id = call.path["identity_id"]
    request = rpc.UpdateIdentityRequest(identity=identities_pb.Identity(id=identity_id))
    request.update_mask.paths.extend(identity_to_proto(call.body, request.identity))
    if request.update_mask.paths:
        await call.write(call.mesh.identities.UpdateIdentity, request)
    return await read_identity(call.mesh, identity_id)


@operations.put("/identities/{identity_id}/properties")
async def upsert_properties_for_identity(call: Call[NoQuery, list[IdentityProperty]]) -> None:
    """Sets properties of an identity by their keys. Others stay."""
    request = rpc.UpsertIdentityPropertiesRequest(
        identity_id=call.path["identity_id"],
        properties=properties_to_proto(call.body, "body"),
    )
    await call.write(call.mesh.identities.UpsertIdentityProperties, request)


@operations.delete("/identities/{identity_id}")
async def delete_identity(call: Call[NoQuery, None]) -> None:
    """Deletes an identity, and detaches it everywhere. Agents and blocks stay."""
    identity_id = call.path["identity_id"]
    await read_identity(call.mesh, identity_id)
    await call.write(call.mesh.identities.DeleteIdentity, rpc.DeleteIdentityRequest(identity_id=identity_id))


async def read_identity(mesh: Mesh, identity_id: str) -> Identity:
    request = rpc.GetIdentityRequest(identity_id=identity_id, view=_VIEW)
    found: identities_pb.Identity = (await read(mesh.identities.GetIdentity, request)).identity
    return identity_from_proto(found)


async def identity_of(mesh: Mesh, keys: list[str]) -> str | None:
    """Returns the id of the identity with a key; None if there is none. Raises ValidationFailed for several keys."""
    if len(keys) > 1:
        raise invalid_field("Only one identifier key can be given.", "query", "identifier_keys")
    request = rpc.ListIdentitiesRequest(page_size=1)
    request.filter.identifier_key = keys[0]
    found = (await read(mesh.identities.ListIdentities, request)).identities
    return found[0].id if found else None
