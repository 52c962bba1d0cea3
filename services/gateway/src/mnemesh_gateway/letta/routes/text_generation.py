"""Single answers of an agent's model, without the agent's memory, messages and tools."""

from __future__ import annotations

from typing import Final

from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1.agents_pb2 import JsonSchemaFormat

from mnemesh_gateway.letta.convert.events import usage_from_proto
from mnemesh_gateway.letta.convert.values import json_to_text, set_present
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.schemas.messages import GeneratedText, GenerateText

operations = Operations()
_ANSWER_SECONDS: Final = 300.0


@operations.post("/agents/{agent_id}/generate", body=GenerateText, result=GeneratedText)
async def generate_completion(call: Call[NoQuery, GenerateText]) -> GeneratedText:
    """Returns the answer of a model to one prompt. Nothing is stored."""
    body = call.body
    if not body.prompt.strip():
        raise invalid_field("prompt must not be blank", "body", "prompt")
    request = rpc.GenerateTextRequest(agent_id=call.path["agent_id"], prompt=body.prompt)
    set_present(request, system=body.system_prompt, model=body.override_model)
    if body.response_schema is not None:
        schema = {"type": "object"} | body.response_schema
        request.response_format.json_schema.CopyFrom(
            JsonSchemaFormat(name="structured_output", schema=json_to_text(schema) or "{}")
        )
    response = await call.mesh.agents.GenerateText(request, timeout=_ANSWER_SECONDS)
    _, _, model = response.model.partition("/")
    return GeneratedText(content=response.text, model=model, usage=usage_from_proto(response.usage, 0))
