"""Agents, their context windows, and reports of erasures."""

import json
from dataclasses import asdict
from typing import Final

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh_kit.time import optional_timestamp_to_proto, timestamp_to_proto
from mnemesh_types.convert import message_to_proto, provenance_to_proto

from mnemesh_orchestrator.model.agents import Agent, AgentState, AgentType, PromptPolicy
from mnemesh_orchestrator.model.context_window import ContextWindowReport
from mnemesh_orchestrator.model.core_memory import Block, CoreMemory
from mnemesh_orchestrator.model.erasure import Erased
from mnemesh_orchestrator.model.files import limits_in_effect
from mnemesh_orchestrator.model.models import ModelSettings
from mnemesh_orchestrator.model.prompts import SystemPrompt
from mnemesh_orchestrator.model.runs import StopReason
from mnemesh_orchestrator.rpc.convert.agent_secrets import secrets_to_proto
from mnemesh_orchestrator.rpc.convert.compactions import compaction_settings_to_proto
from mnemesh_orchestrator.rpc.convert.fields import duration_to_proto
from mnemesh_orchestrator.rpc.convert.memory_extraction import extraction_settings_to_proto
from mnemesh_orchestrator.rpc.convert.model_settings import response_format_to_proto, settings_to_proto
from mnemesh_orchestrator.rpc.convert.rules import rule_to_proto
from mnemesh_orchestrator.rpc.convert.runs import STOP_REASON_TO_PROTO

TYPE_TO_PROTO: Final = {
    AgentType.MEMGPT: pb.AGENT_TYPE_MEMGPT,
    AgentType.MEMGPT_V2: pb.AGENT_TYPE_MEMGPT_V2,
    AgentType.LETTA_V1: pb.AGENT_TYPE_LETTA_V1,
    AgentType.REACT: pb.AGENT_TYPE_REACT,
    AgentType.WORKFLOW: pb.AGENT_TYPE_WORKFLOW,
    AgentType.SPLIT_THREAD: pb.AGENT_TYPE_SPLIT_THREAD,
    AgentType.SLEEPTIME: pb.AGENT_TYPE_SLEEPTIME,
    AgentType.VOICE_CONVO: pb.AGENT_TYPE_VOICE_CONVO,
    AgentType.VOICE_SLEEPTIME: pb.AGENT_TYPE_VOICE_SLEEPTIME,
}
_STATE_TO_PROTO: Final = {
    AgentState.CREATING: pb.AGENT_STATE_CREATING,
    AgentState.IMPORTING: pb.AGENT_STATE_CREATING,
    AgentState.ACTIVE: pb.AGENT_STATE_ACTIVE,
    AgentState.DELETING: pb.AGENT_STATE_DELETING,
}
PROMPT_POLICY_TO_PROTO: Final = {
    PromptPolicy.REBUILD: pb.PROMPT_POLICY_REBUILD,
    PromptPolicy.CACHE: pb.PROMPT_POLICY_CACHE,
}
_SECTIONS: Final = (
    pb.CONTEXT_SECTION_KIND_SYSTEM_PROMPT,
    pb.CONTEXT_SECTION_KIND_CORE_MEMORY,
    pb.CONTEXT_SECTION_KIND_TOOL_RULES,
    pb.CONTEXT_SECTION_KIND_DIRECTORIES,
    pb.CONTEXT_SECTION_KIND_MEMORY_METADATA,
)


def prompt_to_proto(prompt: SystemPrompt) -> pb.SystemPrompt:
    """Returns the message of a system prompt."""
    return pb.SystemPrompt(key=prompt.key, text=prompt.text, built_in=prompt.built_in)


def agent_to_proto(
    agent: Agent,
    effective: ModelSettings,
    message_ids: tuple[str, ...] = (),
    pending_approval: str | None = None,
    group_ids: tuple[str, ...] = (),
) -> pb.Agent:
    """Returns the message of an agent.

    Args:
        agent: The agent.
        effective: The settings of its model calls, with the defaults of the model.
        message_ids: The ids of the messages in the window of its default conversation, if the view has them.
        pending_approval: The id of the approval that it waits for.
        group_ids: The ids of its groups, if the view has them.
    """
    limits = limits_in_effect(
        effective.context_window or 0, agent.max_files_open, agent.per_file_view_window_char_limit
    )
    return pb.Agent(
        id=agent.id,
        name=agent.name,
        description=agent.description,
        type=TYPE_TO_PROTO[agent.type],
        state=_STATE_TO_PROTO[agent.state],
        system=agent.system,
        model=agent.model,
        model_settings=settings_to_proto(agent.model_settings),
        effective_model_settings=settings_to_proto(effective),
        embedder=agent.embedder,
        tool_rules=[rule_to_proto(rule) for rule in agent.tool_rules],
        tags=agent.tags,
        metadata=agent.metadata,
        time_zone=agent.time_zone,
        prompt_policy=PROMPT_POLICY_TO_PROTO[agent.prompt_policy],
        message_buffer_autoclear=agent.message_buffer_autoclear,
        continuation_message=agent.continuation_message,
        compaction_settings=compaction_settings_to_proto(agent.compaction_settings),
        memory_extraction=extraction_settings_to_proto(agent.memory_extraction),
        response_format=response_format_to_proto(agent.response_format),
        enable_sleeptime=agent.enable_sleeptime,
        created_for_agent_id=agent.created_for_agent_id,
        max_files_open=agent.max_files_open,
        per_file_view_window_char_limit=agent.per_file_view_window_char_limit,
        effective_max_files_open=limits.max_files_open,
        effective_per_file_view_window_char_limit=limits.per_file_characters,
        hidden=agent.hidden,
        identity_ids=agent.identity_ids,
        secrets=secrets_to_proto(agent),
        group_ids=group_ids,
        approval_timeout=duration_to_proto(_milliseconds(agent.approval_timeout_seconds)),
        revision=agent.revision,
        message_ids=message_ids,
        tools=[
            pb.AttachedTool(
                tool_id=tool.tool_id, name=tool.name, builtin=tool.builtin, requires_approval=tool.requires_approval
            )
            for tool in agent.tools
        ],
        default_conversation_id=agent.default_conversation_id,
        last_stop_reason=STOP_REASON_TO_PROTO[StopReason(agent.last_stop_reason)] if agent.last_stop_reason else None,
        last_run_completion_time=optional_timestamp_to_proto(agent.last_run_completed_at),
        last_run_duration=duration_to_proto(agent.last_run_ms),
        pending_approval_request_id=pending_approval,
        create_time=timestamp_to_proto(agent.created_at),
        update_time=timestamp_to_proto(agent.updated_at),
        provenance=provenance_to_proto(agent.provenance),
    )


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e3)


def erased_to_proto(erased: Erased) -> pb.ErasureReport:
    """Returns the message of the report of an erasure."""
    return pb.ErasureReport(**asdict(erased))


def core_memory_to_proto(core: CoreMemory) -> blocks_pb2.CoreMemory:
    """Returns the message of a core memory, for views of agents."""
    return blocks_pb2.CoreMemory(
        agent_id=core.agent_id,
        revision=core.revision,
        blocks=[_block_to_proto(block) for block in core.blocks],
        update_time=optional_timestamp_to_proto(core.updated_at),
    )


def _block_to_proto(block: Block) -> blocks_pb2.Block:
    return blocks_pb2.Block(
        id=block.id,
        label=block.label,
        description=block.description,
        value=block.value,
        limit=block.limit,
        read_only=block.read_only,
        revision=block.revision,
        name=block.name,
        tags=block.tags,
        metadata=block.metadata,
        hidden=block.hidden,
        is_template=block.is_template,
        template_name=block.template_name,
        preserve_on_migration=block.preserve_on_migration,
        identity_ids=block.identity_ids,
        created_for_agent_id=block.created_for_agent_id,
        content_revision=block.content_revision,
        create_time=optional_timestamp_to_proto(block.created_at),
        update_time=optional_timestamp_to_proto(block.updated_at),
        provenance=provenance_to_proto(block.provenance),
    )


def context_window_to_proto(report: ContextWindowReport) -> pb.ContextWindow:
    """Returns the message of the report of a context window."""
    texts = (report.system, report.core_memory, report.tool_rules, report.directories, report.metadata)
    sections = [
        pb.ContextSection(kind=kind, tokens=tokens, text=text, count=1 if text else 0)
        for kind, tokens, text in zip(_SECTIONS, report.section_tokens, texts, strict=True)
    ]
    window = report.window
    if report.summary is not None:
        kind = pb.CONTEXT_SECTION_KIND_SUMMARY
        sections.append(pb.ContextSection(kind=kind, tokens=report.summary_tokens, text=report.summary, count=1))
    count = len(window.messages) - (1 if report.summary is None else 2)
    messages, schemas = pb.CONTEXT_SECTION_KIND_MESSAGES, pb.CONTEXT_SECTION_KIND_TOOL_SCHEMAS
    sections.append(pb.ContextSection(kind=messages, tokens=report.message_tokens, count=count))
    sections.append(pb.ContextSection(kind=schemas, tokens=report.schema_tokens, count=len(report.schemas)))
    return pb.ContextWindow(
        context_window_size=report.size,
        total_tokens=report.total_tokens,
        sections=sections,
        messages=[message_to_proto(message, window.agent_id) for message in window.messages],
        tool_schemas=[
            json.dumps(
                {"name": schema.name, "description": schema.description, "parameters": schema.parameters},
                ensure_ascii=False,
            )
            for schema in report.schemas
        ],
        recall_message_count=window.agent_message_count,
        archival_passage_count=report.passage_count,
        estimate=pb.TokenEstimate(
            factor=report.correction.factor, error=report.correction.error, answer_count=report.correction.answers
        ),
    )
