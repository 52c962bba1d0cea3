"""Settings of models, and formats of answers."""

from dataclasses import fields

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1 import runs_pb2

from mnemesh_orchestrator.model.models import ModelSettings, ResponseFormat
from mnemesh_orchestrator.rpc.convert.fields import optional_field, plain_fields, present_fields


def settings_to_proto(settings: ModelSettings) -> pb.ModelSettings:
    """Returns the message of settings. Settings that are None are not set."""
    return pb.ModelSettings(**plain_fields(settings))


def settings_from_proto(message: pb.ModelSettings) -> ModelSettings:
    """Returns the settings of a message."""
    return ModelSettings(**present_fields(message, *(field.name for field in fields(ModelSettings))))


def response_format_to_proto(format_: ResponseFormat | None) -> pb.ResponseFormat | None:
    """Returns the message of a response format, or None."""
    match format_:
        case None:
            return None
        case ResponseFormat(kind="json_schema"):
            schema = pb.JsonSchemaFormat(name=format_.name or "", schema=format_.schema or "", strict=format_.strict)
            return pb.ResponseFormat(json_schema=schema)
        case ResponseFormat(kind="json_object"):
            return pb.ResponseFormat(json_object=pb.JsonObjectFormat())
        case _:
            return pb.ResponseFormat(text=pb.TextFormat())


def response_format_from_proto(owner: pb.Agent | runs_pb2.RunConfig | rpc.GenerateTextRequest) -> ResponseFormat | None:
    """Returns the response format of an agent, a run or a request, or None."""
    match owner.response_format.WhichOneof("format") if owner.HasField("response_format") else None:
        case None:
            return None
        case "json_schema":
            message = owner.response_format.json_schema
            return ResponseFormat("json_schema", message.name, message.schema, optional_field(message, "strict"))
        case kind:
            return ResponseFormat(str(kind))
