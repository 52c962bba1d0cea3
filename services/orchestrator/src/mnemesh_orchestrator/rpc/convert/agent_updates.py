"""Updates of agents: the paths of the update mask and the values that they read."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_types.convert import provenance_from_proto

from mnemesh_orchestrator.rpc.convert.agent_drafts import PROVENANCE_IDS, prompt_policy_from_proto, rules_from_proto
from mnemesh_orchestrator.rpc.convert.agent_secrets import secrets_from_proto
from mnemesh_orchestrator.rpc.convert.compactions import agent_compaction_from_proto
from mnemesh_orchestrator.rpc.convert.fields import optional_field, seconds_from_proto
from mnemesh_orchestrator.rpc.convert.memory_extraction import agent_extraction_from_proto
from mnemesh_orchestrator.rpc.convert.model_settings import response_format_from_proto, settings_from_proto


def _optional(name: str) -> Callable[[pb.Agent], Any]:
    return lambda agent: optional_field(agent, name)


_READERS: Final[Mapping[str, Callable[[pb.Agent], Any]]] = {
    "name": lambda agent: agent.name,
    "description": _optional("description"),
    "system": lambda agent: agent.system,
    "model": lambda agent: agent.model,
    "model_settings": lambda agent: settings_from_proto(agent.model_settings),
    "embedder": _optional("embedder"),
    "tool_rules": rules_from_proto,
    "tags": lambda agent: tuple(agent.tags),
    "metadata": _optional("metadata"),
    "time_zone": lambda agent: agent.time_zone or "UTC",
    "prompt_policy": prompt_policy_from_proto,
    "message_buffer_autoclear": lambda agent: agent.message_buffer_autoclear,
    "continuation_message": _optional("continuation_message"),
    "compaction_settings": agent_compaction_from_proto,
    "memory_extraction": agent_extraction_from_proto,
    "response_format": response_format_from_proto,
    "enable_sleeptime": _optional("enable_sleeptime"),
    "max_files_open": _optional("max_files_open"),
    "per_file_view_window_char_limit": _optional("per_file_view_window_char_limit"),
    "hidden": lambda agent: agent.hidden,
    "identity_ids": lambda agent: tuple(agent.identity_ids),
    "secrets": secrets_from_proto,
    "approval_timeout": lambda agent: seconds_from_proto(agent, "approval_timeout"),
}
_NAMES: Final = {"approval_timeout": "approval_timeout_seconds"}
"""The field names of `Agent` that differ from their paths."""
_PROVENANCE_PATHS: Final = {f"provenance.{name}": name for name in PROVENANCE_IDS}
_WINDOW_PATH: Final = "message_ids"
"""The path of the context window, which is not part of the record."""


def agent_update_from_proto(request: rpc.UpdateAgentRequest) -> tuple[str, dict[str, Any]]:
    """Returns the id of the agent, and the new values by the field names of `Agent`.

    The value of `provenance` is a dictionary of those of its fields that change.

    Raises:
        InvalidArgument: The mask is empty, names a field that cannot be updated, or names `system` while the request
            has a system_prompt_key.
    """
    agent_id = require_id(request.agent.id, "agent", "agent.id")
    paths = request.update_mask.paths
    if request.HasField("system_prompt_key"):
        if "system" in paths:
            raise InvalidArgument("system_prompt_key and agent.system exclude each other.", field="system_prompt_key")
    elif not paths:
        raise InvalidArgument("update_mask must name at least one field.", field="update_mask")
    for path in paths:
        if path not in _READERS and path not in _PROVENANCE_PATHS:
            raise InvalidArgument(f"update_mask must not name {path}.", field="update_mask")
    changes = {_NAMES.get(path, path): _READERS[path](request.agent) for path in paths if path in _READERS}
    names = [_PROVENANCE_PATHS[path] for path in paths if path in _PROVENANCE_PATHS]
    if names:
        provenance = provenance_from_proto(request.agent.provenance)
        changes["provenance"] = {name: getattr(provenance, name) for name in names}
    return agent_id, changes


def window_update_from_proto(request: rpc.UpdateAgentRequest) -> tuple[str, ...] | None:
    """Returns the ids of the messages of the new window, or None if the request updates the record.

    Raises:
        InvalidArgument: The mask names `message_ids` and another field, or an id is malformed.
    """
    if _WINDOW_PATH not in request.update_mask.paths:
        return None
    if request.HasField("if_revision"):
        raise InvalidArgument("if_revision must not be set with message_ids.", field="if_revision")
    if len(request.update_mask.paths) > 1 or request.HasField("system_prompt_key"):
        raise InvalidArgument("update_mask must not name message_ids with other fields.", field="update_mask")
    return tuple(require_id(message_id, "message", "agent.message_ids") for message_id in request.agent.message_ids)
