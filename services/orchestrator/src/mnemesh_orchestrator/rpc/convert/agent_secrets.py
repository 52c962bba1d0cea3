"""The environment variables of agents. Their values are read from requests and never returned."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id
from mnemesh_kit.time import timestamp_to_proto

from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.rpc.convert.fields import optional_field

R = TypeVar("R", rpc.CreateAgentRequest, rpc.UpdateAgentRequest)


def secrets_from_proto(agent: pb.Agent) -> dict[str, str | None]:
    """Returns the values by name; None for one that the request does not contain.

    Raises:
        InvalidArgument: A name occurs twice.
    """
    values = {secret.key: optional_field(secret, "value") for secret in agent.secrets}
    if len(values) < len(agent.secrets):
        raise InvalidArgument("agent.secrets must not have the same key twice.", field="agent.secrets")
    return values


def secrets_to_proto(agent: Agent) -> list[pb.Secret]:
    """Returns the messages of the variables of an agent, without values."""
    return [
        pb.Secret(
            id=derive_id("secret", agent.id, secret.name),
            key=secret.name,
            update_time=timestamp_to_proto(secret.updated_at),
        )
        for secret in agent.secrets
    ]


def request_without_secrets(request: R, fingerprint: Callable[[str], str]) -> R:
    """Returns a copy of a request with a fingerprint in place of each value, to compare repeated requests by."""
    created: Mapping[str, str] = request.secrets if isinstance(request, rpc.CreateAgentRequest) else {}
    if not created and not request.agent.secrets:
        return request
    copy = type(request)()
    copy.CopyFrom(request)
    if isinstance(copy, rpc.CreateAgentRequest):
        for name, value in created.items():
            copy.secrets[name] = fingerprint(value)
    for secret in copy.agent.secrets:
        if secret.HasField("value"):
            secret.value = fingerprint(secret.value)
    return copy
