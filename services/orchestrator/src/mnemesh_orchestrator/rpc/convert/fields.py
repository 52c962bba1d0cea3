"""Ids in requests, and the enumerations that several services of the orchestrator have."""

from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh_kit.ids import is_id, require_id
from mnemesh_types.twin import enum_of

from mnemesh_orchestrator.model.conversations import default_conversation_id
from mnemesh_orchestrator.model.inputs import OnBusy
from mnemesh_orchestrator.model.runs import RunOrigin, RunStatus, StepStatus, StopReason

enum_of(agents_pb2.StopReason, StopReason)
enum_of(runs_pb2.RunStatus, RunStatus)
enum_of(runs_pb2.RunOrigin, RunOrigin)
enum_of(runs_pb2.StepStatus, StepStatus, "SUCCESS")
enum_of(runs_pb2.OnBusy, OnBusy, "WAIT")

PROVENANCE_IDS = tuple(
    f"provenance.{name}" for name in ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
)
"""The fields of the provenance that clients write."""


def conversation_id_from_proto(agent_id: str, value: str | None) -> str:
    """Returns the id of a conversation of an agent. Nothing, "default" and the agent's id mean the default one."""
    if value in (None, "", "default", agent_id):
        return default_conversation_id(agent_id)
    return require_id(str(value), "conv", "conversation_id")


def any_conversation_id_from_proto(value: str, field: str = "conversation_id") -> str:
    """Returns the id of a conversation of any agent. The id of an agent means its default conversation."""
    return default_conversation_id(value) if is_id(value, "agent") else require_id(value, "conv", field)
