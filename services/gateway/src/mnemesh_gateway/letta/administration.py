"""The server itself: its health, its organizations, and tags."""

from typing import Final

import msgspec
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.server.v1 import server_service_pb2
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.server_info import version_of
from mnemesh_letta.convert.values import set_present
from starlette.responses import Response

from mnemesh_gateway.letta.mesh import PageQuery, list_page
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations, json_response

operations = Operations()
_BY_TOKENS = "Organizations and users exist by the tokens that name them: see `mnemesh tokens create`."
_VERSION: Final = version_of("mnemesh-gateway")
_READY_SECONDS: Final = 2.0


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


@operations.get("/admin/orgs/")
@operations.get("/orgs/")
async def list_orgs(_call: Call[NoQuery, None]) -> list[Organization]:
    """Returns the organization of the caller."""
    organization_id = current_principal().organization_id
    return [Organization(id=organization_id, name=organization_id)]


@operations.get("/admin/users/")
@operations.get("/users/")
async def list_users(_call: Call[NoQuery, None]) -> list[User]:
    """Returns the caller."""
    caller = current_principal()
    return [User(id=caller.subject_id, name=caller.subject_id, organization_id=caller.organization_id)]


for _path in ("/admin/orgs/", "/admin/users/", "/orgs/", "/users/"):
    for _method in ("POST", "PUT", "PATCH", "DELETE"):
        operations.refuse(_method, _path, _BY_TOKENS)


class Health(msgspec.Struct):
    """The status of the gateway or of the mesh. `version` is the version of mnemesh."""

    version: str
    status: str


@operations.get("/health/")
async def check_health(_call: Call[NoQuery, None]) -> Health:
    """Tells that the gateway answers."""
    return Health(_VERSION, "ok")


@operations.get("/ready/")
async def check_readiness(call: Call[NoQuery, None]) -> Health | Response:
    """Tells whether the mesh serves requests: 503 if not."""
    try:
        await call.mesh.server.GetServerInfo(server_service_pb2.GetServerInfoRequest(), timeout=_READY_SECONDS)
    except MnemeshError:
        return json_response(Health(_VERSION, "degraded"), 503)
    return Health(_VERSION, "ok")


class ListTags(PageQuery, kw_only=True):
    """The query of a list of tags."""

    query_text: str | None = None
    name: str | None = None


@operations.get("/tags/")
async def list_tags(call: Call[ListTags, None]) -> list[str]:
    """Lists the tags of agents, in alphabetical order."""
    query = call.query
    request = rpc.ListTagsRequest()
    set_present(request, text_search=query.name or query.query_text)
    return await list_page(call.mesh.agents.ListTags, request, "tags", query, default="asc")
