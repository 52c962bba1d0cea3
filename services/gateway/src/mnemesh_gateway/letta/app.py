"""Letta's REST API as one ASGI application: its operations, its OpenAPI document, and the page that shows it."""

import functools
import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from mnemesh_kit.errors import MnemeshError, Unimplemented
from mnemesh_kit.server_info import version_of
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from mnemesh_gateway.http.body import Bodies
from mnemesh_gateway.http.errors import letta_response
from mnemesh_gateway.letta import (
    administration,
    agent_files,
    agent_memory,
    agent_messages,
    agent_tools,
    agents,
    archives,
    blocks,
    conversations,
    folders,
    groups,
    identities,
    jobs,
    mcp_authorizations,
    mcp_servers,
    messages,
    models,
    runs,
    schedules,
    tools,
)
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import NO_CONTENT, NoQuery, Operation, Profile, json_response, starlette_routes

_RESOURCES: Final = (
    agent_messages,
    agent_files,
    agents,
    agent_memory,
    agent_tools,
    schedules,
    runs,
    jobs,
    conversations,
    messages,
    blocks,
    archives,
    folders,
    groups,
    identities,
    mcp_authorizations,
    mcp_servers,
    models,
    tools,
    administration,
)
"""The modules with the operations. The first path that matches counts, so the most frequent ones come first."""
_REFERENCE: Final = "#/components/schemas/{name}"

_EXACT: Final = frozenset({"models"})
"""The resources that OpenAI's API has too: its paths have no slash at the end."""
_CLOUD: Final = "This is a service of Letta's cloud."
_INTERNAL: Final = "Letta's own services use this path. The same path without `_internal_` is for clients."
_PROXY: Final = "This path forwards the requests of a client to a provider. Send messages to an agent."
_NOT_SERVED: Final[Mapping[str, str]] = {
    "_internal_agents": _INTERNAL,
    "_internal_blocks": _INTERNAL,
    "_internal_runs": _INTERNAL,
    "_internal_search": _INTERNAL,
    "_internal_templates": _CLOUD,
    "anthropic": _PROXY,
    "client-side-access-tokens": _CLOUD,
    "environments": _CLOUD,
    "git": "Blocks are the memory of agents; no repositories are kept of them.",
    "projects": _CLOUD,
    "templates": _CLOUD,
    "sandbox-config": (
        "Tools run in the sandboxes of the tools service, which its operator configures. Variables of tools are the "
        "`secrets` of an agent."
    ),
    "voice-beta": "Agents answer to clients of OpenAI's API at /v1/chat/completions, voice agents too.",
    "zai": _PROXY,
}
"""Resources of Letta's API without any operation, and the reasons. Their paths answer 501 in its form."""
_DOCUMENTS: Final = ("/openapi.json", "/v1/openapi.json", "/docs")


def document(operations: Sequence[Operation]) -> bytes:
    """Returns the OpenAPI 3.1 document as JSON."""
    shapes: list[Any] = []
    for operation in operations:
        shapes += [shape for shape in (operation.body, operation.result) if shape is not None]
    schemas, components = msgspec.json.schema_components(shapes, ref_template=_REFERENCE)
    found = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        body = next(found) if operation.body is not None else None
        result = next(found) if operation.result is not None else {"type": "null"}
        paths.setdefault("/v1" + operation.path, {})[operation.method.lower()] = _described(operation, body, result)
    info = {"title": "mnemesh: Letta's REST API", "version": version_of("mnemesh-gateway")}
    return msgspec.json.encode(
        {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": components}}
    )


def _described(operation: Operation, body: Any, result: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "Successful response"}
    if operation.status != NO_CONTENT:
        answer["content"] = {"application/json": {"schema": result}}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": (inspect.getdoc(operation.handler) or "").partition("\n")[0],
        "tags": [operation.path.split("/")[1]],
        "parameters": [_path_parameter(operation, name) for name in operation.parameters] + _query(operation.query),
        "responses": {str(operation.status): answer},
    }
    if body is not None:
        described["requestBody"] = {
            "required": not operation.optional_body,
            "content": {"application/json": {"schema": body}},
        }
    return described


def _path_parameter(operation: Operation, name: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if name in operation.id_prefixes:
        schema["pattern"] = f"^{operation.id_prefixes[name]}-[0-9a-f-]{{36}}$"
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query(query: type[msgspec.Struct]) -> list[dict[str, Any]]:
    if query is NoQuery:
        return []
    hints = typing.get_type_hints(query, include_extras=True)
    return [
        {
            "name": field.encode_name,
            "in": "query",
            "required": field.required,
            "schema": msgspec.json.schema(hints[field.name]),
        }
        for field in msgspec.structs.fields(query)
    ]


DOCS_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>mnemesh: REST API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:60rem;padding:1rem;color:#1c1c1c;background:#fff}
summary{cursor:pointer;padding:.3rem 0}code,pre{font:13px ui-monospace,monospace}
pre{background:#f4f4f4;padding:.7rem;overflow:auto;max-height:24rem}
b.m{display:inline-block;width:4.5rem;font:600 13px ui-monospace,monospace}
@media (prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}pre{background:#242424}}
</style></head><body><h1>mnemesh: REST API</h1>
<p>The document is at <a href="/openapi.json">/openapi.json</a>. <label>Filter
<input id="filter" type="search"></label></p><div id="list">Loading …</div>
<script>
const list=document.getElementById("list"),filter=document.getElementById("filter");
const made=(tag,text)=>{const e=document.createElement(tag);if(text!==undefined)e.textContent=text;return e};
fetch("/openapi.json").then(r=>r.json()).then(doc=>{
  const rows=[];
  for(const [path,methods] of Object.entries(doc.paths))for(const [method,op] of Object.entries(methods))
    rows.push({path,method,op});
  const resolve=(s,depth)=>{
    if(Array.isArray(s))return s.map(x=>resolve(x,depth));
    if(s===null||typeof s!=="object")return s;
    if(s.$ref){const name=s.$ref.split("/").pop();return depth>3?name:resolve(doc.components.schemas[name],depth+1)}
    return Object.fromEntries(Object.entries(s).map(([k,v])=>[k,resolve(v,depth)]))};
  const show=()=>{
    const word=filter.value.toLowerCase();list.replaceChildren();let tag="";
    for(const {path,method,op} of rows){
      if(!(method+" "+path+" "+op.summary).toLowerCase().includes(word))continue;
      if(op.tags[0]!==tag){tag=op.tags[0];list.append(made("h2",tag))}
      const d=made("details"),s=made("summary"),m=made("b",method.toUpperCase());m.className="m";
      s.append(m,made("code",path)," ",op.summary);d.append(s);
      d.addEventListener("toggle",()=>{if(d.open&&d.children.length===1){
        for(const [title,value] of [["Parameters",op.parameters],
            ["Body",op.requestBody?.content["application/json"].schema],
            ["Answer",Object.values(op.responses)[0].content?.["application/json"].schema]]){
          if(value===undefined||value.length===0)continue;
          d.append(made("h4",title),made("pre",JSON.stringify(resolve(value,0),null,2)))}}});
      list.append(d)}};
  filter.addEventListener("input",show);show()});
</script></body></html>
"""
"""Loads the document and shows each operation with its parameters, its body and its answer."""


class LettaApp:
    """Serves what belongs to Letta's API, and leaves the rest to the next application."""

    def __init__(self, mesh: Mesh, profile: Profile, bodies: Bodies, following: ASGIApp) -> None:
        self._following = following
        self._operations: list[Operation] = [operation for module in _RESOURCES for operation in module.operations.all]
        self._by_resource: dict[str, list[Operation]] = {name: [] for name in _NOT_SERVED}
        for operation in self._operations:
            self._by_resource.setdefault(operation.path.split("/")[1], []).append(operation)
        self._routes = functools.partial(starlette_routes, mesh=mesh, profile=profile, bodies=bodies)
        self._routers: dict[str, Router] = {}
        self._documents = Router(
            [
                Route("/openapi.json", self._openapi, methods=["GET"]),
                Route("/v1/openapi.json", self._openapi, methods=["GET"]),
                Route("/docs", _docs, methods=["GET"]),
            ],
            redirect_slashes=False,
        )
        self._document: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
        router = self._router(scope["path"])
        if router is None:
            await self._following(scope, receive, send)
            return
        scope["app"] = self  # routes then raise HTTPException for a wrong method
        try:
            await router(scope, receive, send)
        except _NotOurs:
            await self._following(scope, receive, send)
        except HTTPException as error:
            detail = f"{scope['path'][:200]} does not take {scope['method']}."
            await json_response({"detail": detail}, error.status_code)(scope, receive, send)

    def error_response(self, scope: Scope, error: MnemeshError) -> Response | None:
        """Returns an error in the form of Letta's API; None for a request that does not belong to it."""
        router = self._router(scope["path"])
        if router is None or (
            router.default is _end_app and all(route.matches(scope)[0] is Match.NONE for route in router.routes)
        ):
            return None
        return letta_response(error)

    def _router(self, path: str) -> Router | None:
        if path in _DOCUMENTS:
            return self._documents
        head, _, rest = path[1:].partition("/")
        name = rest.partition("/")[0]
        if head != "v1" or name not in self._by_resource:
            return None
        if name not in self._routers:  # built at the first request for the resource
            is_exact = name in _EXACT
            self._routers[name] = Router(
                self._routes(self._by_resource[name], exact=is_exact),
                redirect_slashes=False,
                default=_end_app if is_exact else _refuse_unknown,
            )
        return self._routers[name]

    async def _openapi(self, _request: Request) -> Response:
        if self._document is None:
            self._document = document(self._operations)
        return Response(self._document, media_type="application/json")


class _NotOurs(Exception):
    """The path is one of OpenAI's API."""


async def _end_app(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise _NotOurs


async def _refuse_unknown(scope: Scope, receive: Receive, send: Send) -> None:
    reason = _NOT_SERVED.get(scope["path"].split("/")[2])
    wanted = f"The gateway does not serve {scope['method']} {scope['path'][:200]}."
    error = Unimplemented(" ".join(filter(None, (wanted, reason, "See docs/letta-compatibility.md."))))
    await letta_response(error)(scope, receive, send)


async def _docs(_request: Request) -> Response:
    return Response(DOCS_PAGE, media_type="text/html; charset=utf-8")
