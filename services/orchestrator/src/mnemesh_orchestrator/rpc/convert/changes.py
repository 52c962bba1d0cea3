"""What clients change of agents: the paths of an update mask, and what they read."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument, Unimplemented
from mnemesh_kit.ids import require_id

from mnemesh_orchestrator.rpc.convert import drafts
from mnemesh_orchestrator.rpc.convert.settings import (
    compaction_of_agent,
    format_from_proto,
    present,
    settings_from_proto,
)


def _optional(name: str) -> Callable[[pb.Agent], Any]:
    return lambda agent: present(agent, name).get(name)


_CHANGES: Final[Mapping[str, Callable[[pb.Agent], Any]]] = {
    "name": drafts.new_name_from_proto,
    "description": _optional("description"),
    "system": drafts.system_from_proto,
    "model": lambda agent: agent.model,
    "model_settings": lambda agent: settings_from_proto(agent.model_settings, "agent.model_settings"),
    "embedder": _optional("embedder"),
    "tool_rules": drafts.rules_from_proto,
    "tags": drafts.tags_from_proto,
    "metadata": drafts.metadata_from_proto,
    "time_zone": lambda agent: drafts.require_time_zone(agent.time_zone or "UTC"),
    "prompt_policy": drafts.policy_from_proto,
    "message_buffer_autoclear": lambda agent: agent.message_buffer_autoclear,
    "continuation_message": drafts.continuation_from_proto,
    "compaction_settings": compaction_of_agent,
    "response_format": format_from_proto,
    "max_files_open": _optional("max_files_open"),
    "per_file_view_window_char_limit": _optional("per_file_view_window_char_limit"),
    "hidden": lambda agent: agent.hidden,
    "identity_ids": drafts.identities_from_proto,
}
_CARRIED: Final = tuple(f"provenance.{name}" for name in drafts.CARRIED)
_UNANSWERED: Final = ("enable_sleeptime", "secrets")
WINDOW: Final = "message_ids"
"""The path that is no field of the record."""


def changes_from_proto(request: rpc.UpdateAgentRequest) -> tuple[str, dict[str, Any]]:
    """The agent that an UpdateAgentRequest names, and the new values of its fields.

    Raises:
        InvalidArgument: naming the field.
    """
    agent_id = require_id(request.agent.id, "agent", "agent.id")
    paths = request.update_mask.paths
    if request.HasField("system_prompt_key"):
        drafts.require_prompt_key(request.system_prompt_key)
        if "system" in paths:
            raise drafts.two_prompts()
    elif not paths:
        raise InvalidArgument("update_mask names no field.", field="update_mask")
    for path in paths:
        if path in _UNANSWERED:
            raise Unimplemented(f"This server does not answer agent.{path} yet.", field=f"agent.{path}")
        if path not in _CHANGES and path not in _CARRIED:
            raise InvalidArgument(f"update_mask: {path} cannot be changed.", field="update_mask")
    changes = {path: _CHANGES[path](request.agent) for path in paths if path in _CHANGES}
    given = drafts.provenance_from_proto(request.agent)
    origin = {path.partition(".")[2]: path for path in paths if path in _CARRIED}
    if origin:
        changes["provenance"] = {kind: getattr(given, kind) for kind in origin}
    return agent_id, changes


def window_from_proto(request: rpc.UpdateAgentRequest) -> tuple[str, ...] | None:
    """The ids that a request puts into the window; None where it changes the record.

    Raises:
        InvalidArgument: naming the field.
    """
    if WINDOW not in request.update_mask.paths:
        return None
    if len(request.update_mask.paths) > 1 or request.HasField("system_prompt_key"):
        raise InvalidArgument("message_ids changes nothing else beside it.", field="update_mask")
    ids = tuple(require_id(message_id, "message", "agent.message_ids") for message_id in request.agent.message_ids)
    if len(set(ids)) != len(ids):
        raise InvalidArgument("agent.message_ids names a message twice.", field="agent.message_ids")
    return ids
