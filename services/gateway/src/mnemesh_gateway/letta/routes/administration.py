"""Organizations and users. Tokens name them; the gateway shows those of the caller, and stores none."""

from __future__ import annotations

import msgspec
from mnemesh_kit.principal import current_principal

from mnemesh_gateway.letta.operations import Call, NoQuery, Operations

operations = Operations()
_BY_TOKENS = "Organizations and users exist by the tokens that name them: see `mnemesh tokens create`."


class Organization(msgspec.Struct, kw_only=True):
    """The organization of the caller. Its name is its id."""

    id: str
    name: str
    privileged_tools: bool = False


class User(msgspec.Struct, kw_only=True):
    """The caller. Its name is its id."""

    id: str
    name: str
    organization_id: str
    is_deleted: bool = False


@operations.get("/admin/orgs/", result=list[Organization])
@operations.get("/orgs/", result=list[Organization])
async def list_orgs(_call: Call[NoQuery, None]) -> list[Organization]:
    """Returns the organization of the caller."""
    organization_id = current_principal().organization_id
    return [Organization(id=organization_id, name=organization_id)]


@operations.get("/admin/users/", result=list[User])
@operations.get("/users/", result=list[User])
async def list_users(_call: Call[NoQuery, None]) -> list[User]:
    """Returns the caller."""
    caller = current_principal()
    return [User(id=caller.subject_id, name=caller.subject_id, organization_id=caller.organization_id)]


for _path in ("/admin/orgs/", "/admin/users/", "/orgs/", "/users/"):
    for _method in ("POST", "PUT", "PATCH", "DELETE"):
        operations.refuse(_method, _path, _BY_TOKENS)
