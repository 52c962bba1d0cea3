"""Agents: the contract's message and its relations to Letta's AgentState."""

from __future__ import annotations

from typing import Any, Final

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import models_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.files.v1 import files_pb2

from mnemesh_gateway.letta.convert.memory import block_from_proto
from mnemesh_gateway.letta.convert.models import (
    choice_to_proto,
    compaction_from_proto,
    compaction_to_proto,
    embedding_config,
    format_from_proto,
    format_to_proto,
    llm_config,
    settings_to_json,
)
from mnemesh_gateway.letta.convert.tools import rule_from_proto, rule_to_proto
from mnemesh_gateway.letta.convert.values import (
    AGENT_TYPE_NAMES,
    STOP_REASON_NAMES,
    json_to_text,
    metadata,
    milliseconds,
    moment,
    present,
    provenance,
    set_present,
)
from mnemesh_gateway.letta.schemas.agents import AgentOptions, AgentState, FileBlock, Memory, Source, Variable
from mnemesh_gateway.letta.schemas.tools import Tool

_OPENAI_OUTPUT_TOKENS: Final = 16384


def state_from_proto(
    agent: pb.Agent,
    core_memory: blocks_pb2.CoreMemory,
    model: models_pb2.Model,
    embedder: models_pb2.EmbeddingModel | None,
    tools: list[Tool],
    sources: list[Source],
    file_blocks: list[FileBlock],
) -> AgentState:
    """Returns the state of an agent. What only some answers have is empty: identities, groups, pending approval."""
    blocks = [block_from_proto(block) for block in core_memory.blocks]
    kind = AGENT_TYPE_NAMES.get(agent.type, "letta_v1_agent")
    variables = [Variable(id=item.id, agent_id=agent.id, key=item.key) for item in agent.secrets]
    return AgentState(
        id=agent.id,
        name=agent.name,
        agent_type=kind,
        system=agent.system,
        model=agent.model or None,
        model_settings=_settings_in_effect(model, agent),
        embedding=present(agent, "embedder"),
        llm_config=llm_config(model, agent.effective_model_settings),
        embedding_config=embedding_config(embedder, agent.embedder) if embedder or agent.HasField("embedder") else None,
        compaction_settings=compaction_from_proto(agent),
        response_format=format_from_proto(agent),
        description=present(agent, "description"),
        metadata=metadata(agent),
        memory=Memory(agent_type=kind, blocks=blocks, file_blocks=file_blocks),
        blocks=blocks,
        tools=tools,
        sources=sources,
        tags=list(agent.tags),
        tool_rules=[rule_from_proto(rule) for rule in agent.tool_rules],
        message_ids=list(agent.message_ids),
        tool_exec_environment_variables=variables,
        secrets=variables,
        identity_ids=list(agent.identity_ids),
        identities=[],
        pending_approval=None,
        message_buffer_autoclear=agent.message_buffer_autoclear,
        enable_sleeptime=present(agent, "enable_sleeptime"),
        multi_agent_group=None,
        managed_group=None,
        last_run_completion=moment(agent, "last_run_completion_time"),
        last_run_duration_ms=milliseconds(agent, "last_run_duration"),
        last_stop_reason=STOP_REASON_NAMES.get(agent.last_stop_reason) if agent.HasField("last_stop_reason") else None,
        timezone=agent.time_zone or None,
        max_files_open=agent.effective_max_files_open,
        per_file_view_window_char_limit=agent.effective_per_file_view_window_char_limit,
        hidden=agent.hidden,
        created_at=moment(agent, "create_time"),
        updated_at=moment(agent, "update_time"),
        **provenance(agent),
    )


def _settings_in_effect(model: models_pb2.Model, agent: pb.Agent) -> dict[str, Any]:
    """Returns the settings of an agent's model, with Letta's defaults for what neither of them sets."""
    found = settings_to_json(model.provider_type, agent.effective_model_settings)
    defaults: dict[str, Any] = {"temperature": 1.0, "parallel_tool_calls": True, "strict": False}
    if found["provider_type"] == "openai":
        reasons = model.HasField("capabilities") and not model.capabilities.temperature
        defaults["reasoning"] = {"reasoning_effort": "medium" if reasons else "minimal"}
        window = agent.effective_model_settings.context_window or model.context_window
        defaults["max_output_tokens"] = min(_OPENAI_OUTPUT_TOKENS, window - 1) if window else _OPENAI_OUTPUT_TOKENS
        defaults["response_format"] = format_from_proto(agent)
    if model.max_output_tokens:
        defaults["max_output_tokens"] = model.max_output_tokens
    return defaults | found


def options_to_proto(body: AgentOptions, message: pb.Agent) -> set[str]:
    """Sets the settings that a body has; returns their paths. Relations and secrets are left to the caller."""
    paths = choice_to_proto(body, message)
    plain: dict[str, Any] = {
        "description": body.description,
        "system": body.system,
        "metadata": json_to_text(body.metadata),
        "time_zone": body.timezone,
        "message_buffer_autoclear": body.message_buffer_autoclear,
        "enable_sleeptime": body.enable_sleeptime,
        "max_files_open": body.max_files_open,
        "per_file_view_window_char_limit": body.per_file_view_window_char_limit,
        "hidden": body.hidden,
    }
    set_present(message, **plain)
    paths |= {name for name, value in plain.items() if value is not None}
    origin = {
        "project_id": body.project_id,
        "template_id": body.template_id,
        "base_template_id": body.base_template_id,
    }
    set_present(message.provenance, **origin)
    paths |= {f"provenance.{name}" for name, value in origin.items() if value is not None}
    if body.tags is not None:
        message.tags.extend(dict.fromkeys(body.tags))
        paths.add("tags")
    if body.identity_ids is not None:
        message.identity_ids.extend(dict.fromkeys(body.identity_ids))
        paths.add("identity_ids")
    if body.tool_rules is not None:
        message.tool_rules.extend(rule_to_proto(rule, index) for index, rule in enumerate(body.tool_rules))
        paths.add("tool_rules")
    of_model = (body.model_settings or {}).get("response_format")
    if body.response_format is not None:
        message.response_format.CopyFrom(format_to_proto(body.response_format, "body", "response_format"))
        paths.add("response_format")
    elif of_model is not None:
        message.response_format.CopyFrom(format_to_proto(of_model, "body", "model_settings", "response_format"))
        paths.add("response_format")
    if body.compaction_settings is not None:
        settings = compaction_to_proto(body.compaction_settings, "body", "compaction_settings")
        message.compaction_settings.CopyFrom(settings)
        paths.add("compaction_settings")
    return paths


def folder_from_proto(folder: files_pb2.Folder, embedder: models_pb2.EmbeddingModel | None) -> Source:
    """Returns a folder."""
    config = embedding_config(embedder, folder.embedder)
    config.embedding_chunk_size = folder.chunk_size or config.embedding_chunk_size
    return Source(
        id=folder.id,
        name=folder.name,
        description=present(folder, "description"),
        instructions=present(folder, "instructions"),
        metadata=metadata(folder),
        embedding_config=config,
        created_by_id=folder.provenance.created_by_id or None,
        last_updated_by_id=folder.provenance.last_updated_by_id or None,
        created_at=moment(folder, "create_time"),
        updated_at=moment(folder, "update_time"),
    )


def file_block_from_proto(file: files_pb2.AgentFile) -> FileBlock:
    """Returns a file of an agent as a block. The value of a closed file is empty."""
    return FileBlock(
        id="block-" + file.file_id.partition("-")[2],
        label=file.name,
        value=file.visible_content if file.is_open else "",
        file_id=file.file_id,
        source_id=file.folder_id,
        is_open=file.is_open,
        last_accessed_at=moment(file, "last_access_time"),
    )
