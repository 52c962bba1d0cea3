"""The OpenAPI document of the operations, and a page that shows it without any other host."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from mnemesh_kit.server_info import version_of

from mnemesh_gateway.letta.operations import NO_CONTENT, NoQuery, Operation

_REFERENCE: Final = "#/components/schemas/{name}"


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
