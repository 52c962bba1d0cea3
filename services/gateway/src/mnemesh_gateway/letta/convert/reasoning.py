"""How agents think where a client does not say it: by the model itself, in the arguments of tools, or not at all."""

from __future__ import annotations

from typing import Final

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import models_pb2

from mnemesh_gateway.letta.convert.values import present
from mnemesh_gateway.letta.schemas.agents import AgentOptions

_BUDGET: Final = 1024
"""The tokens for thoughts of models that have a budget for them."""


def set_reasoning(
    body: AgentOptions, model: models_pb2.Model, settings: pb.ModelSettings, kind: pb.AgentType.ValueType
) -> None:
    """Sets how a new agent thinks. It thinks unless the body says otherwise.

    Args:
        body: what the client sends.
        model: the model of the agent.
        settings: the settings of the body, which are completed.
        kind: the type of the agent.
    """
    thinks = _wanted(body, settings)
    if model.capabilities.reasoning:
        _by_itself(model, settings, thinks)
    elif not thinks and kind != pb.AGENT_TYPE_LETTA_V1:
        settings.inner_thoughts_in_kwargs = False


def change_reasoning(
    body: AgentOptions, model: models_pb2.Model, settings: pb.ModelSettings, kind: pb.AgentType.ValueType
) -> bool:
    """Changes how an agent thinks; returns whether that has changed.

    With another model, thoughts are those of the model: an agent of an older type writes none into the arguments of
    tools any more, unless the body asks for them.
    """
    if body.reasoning is None and body.model is None:
        return False
    before = settings.SerializeToString(deterministic=True)
    if model.capabilities.reasoning:
        _by_itself(model, settings, _wanted(body, settings))
    elif kind != pb.AGENT_TYPE_LETTA_V1:
        settings.inner_thoughts_in_kwargs = body.reasoning is True
    return settings.SerializeToString(deterministic=True) != before


def _wanted(body: AgentOptions, settings: pb.ModelSettings) -> bool:
    if body.reasoning is not None:
        return body.reasoning
    return present(settings, "enable_reasoner") is not False


def _by_itself(model: models_pb2.Model, settings: pb.ModelSettings, thinks: bool) -> None:
    """The model has a channel for its thoughts. OpenAI's models cannot be told not to think."""
    settings.inner_thoughts_in_kwargs = False
    if model.api != models_pb2.MODEL_API_ANTHROPIC_MESSAGES:
        return
    settings.enable_reasoner = thinks
    if thinks and not settings.HasField("max_reasoning_tokens"):
        settings.max_reasoning_tokens = _BUDGET
