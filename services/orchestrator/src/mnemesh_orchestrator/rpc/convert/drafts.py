"""What clients ask of agents: drafts, changes and filters, checked field by field."""

from collections.abc import Mapping
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh_kit.errors import InvalidArgument, Unimplemented
from mnemesh_kit.ids import require_id
from mnemesh_types import convert as shared
from mnemesh_types.provenance import Provenance

from mnemesh_orchestrator.model.agents import AgentFilter, AgentType, LinkKind, PromptPolicy
from mnemesh_orchestrator.model.creation import AgentDraft, NewBlock, filled
from mnemesh_orchestrator.model.rules import ToolRule, checked_rules
from mnemesh_orchestrator.prompt.prompts import LONGEST_PROMPT
from mnemesh_orchestrator.rpc.convert.agents import AGENT_TYPES, PROMPT_POLICIES
from mnemesh_orchestrator.rpc.convert.rules import rule_from_proto
from mnemesh_orchestrator.rpc.convert.runs import STOP_REASONS_BACK, inputs_from_proto
from mnemesh_orchestrator.rpc.convert.settings import (
    compaction_of_agent,
    format_from_proto,
    present,
    require_json_object,
    require_known,
    require_plain,
    settings_from_proto,
)

_TYPES_BACK: Final = {number: kind for kind, number in AGENT_TYPES.items()} | {
    pb.AGENT_TYPE_UNSPECIFIED: AgentType.MEMGPT_V2
}
_POLICIES_BACK: Final = {number: policy for policy, number in PROMPT_POLICIES.items()} | {
    pb.PROMPT_POLICY_UNSPECIFIED: PromptPolicy.REBUILD
}
_LONGEST_NAME: Final = 512
CARRIED: Final = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
"""The fields of an agent's provenance that are its clients' own."""
_LONGEST_CONTINUATION: Final = 2_000


def draft_from_proto(request: rpc.CreateAgentRequest) -> AgentDraft:
    """What a CreateAgentRequest asks for.

    Raises:
        InvalidArgument: naming the field.
        Unimplemented: of what this server does not do yet.
    """
    _refuse_unanswered(request)
    agent, variables = request.agent, _variables(request.memory_variables)
    if request.HasField("system_prompt_key"):
        require_prompt_key(request.system_prompt_key)
        if agent.system:
            raise two_prompts()
    kind = _TYPES_BACK.get(agent.type)
    if kind is None:
        raise InvalidArgument("agent.type is not known.", field="agent.type")
    return AgentDraft(
        type=kind,
        name=require_name(agent.name),
        model=agent.model,
        description=agent.description if agent.HasField("description") else None,
        system=_system(filled(agent.system, variables)) if agent.system else None,
        system_prompt_key=request.system_prompt_key if request.HasField("system_prompt_key") else None,
        memory_variables=variables,
        model_settings=settings_from_proto(agent.model_settings, "agent.model_settings"),
        embedder=agent.embedder if agent.HasField("embedder") else None,
        tool_rules=rules_from_proto(agent),
        tags=tags_from_proto(agent),
        metadata=metadata_from_proto(agent),
        time_zone=require_time_zone(agent.time_zone or "UTC"),
        prompt_policy=policy_from_proto(agent),
        message_buffer_autoclear=agent.message_buffer_autoclear,
        continuation_message=continuation_from_proto(agent),
        compaction_settings=compaction_of_agent(agent),
        response_format=format_from_proto(agent),
        enable_sleeptime=None,
        max_files_open=agent.max_files_open if agent.HasField("max_files_open") else None,
        per_file_view_window_char_limit=(
            agent.per_file_view_window_char_limit if agent.HasField("per_file_view_window_char_limit") else None
        ),
        hidden=agent.hidden,
        identity_ids=identities_from_proto(agent),
        provenance=provenance_from_proto(agent),
        include_base_tools=request.include_base_tools if request.HasField("include_base_tools") else True,
        include_base_tool_rules=(
            request.include_base_tool_rules if request.HasField("include_base_tool_rules") else None
        ),
        tool_names=tuple(dict.fromkeys(request.tool_names)),
        tool_ids=tuple(require_id(tool_id, "tool", "tool_ids") for tool_id in request.tool_ids),
        tool_sources=tuple(request.tool_sources),
        blocks=tuple(_block_from_proto(block, place, variables) for place, block in enumerate(request.blocks)),
        block_ids=tuple(require_id(block_id, "block", "block_ids") for block_id in request.block_ids),
        archive_ids=tuple(require_id(archive_id, "archive", "archive_ids") for archive_id in request.archive_ids),
        initial_messages=(
            inputs_from_proto(request.initial_messages.messages, "initial_messages.messages", any_number=True)
            if request.HasField("initial_messages")
            else None
        ),
    )


def _refuse_unanswered(request: rpc.CreateAgentRequest) -> None:
    asked = {
        "secrets": bool(request.secrets),
        "folder_ids": bool(request.folder_ids),
        "include_multi_agent_tools": request.include_multi_agent_tools,
        "include_default_folder": request.include_default_folder,
        "agent.enable_sleeptime": request.agent.enable_sleeptime,
    }
    for field, is_asked in asked.items():
        if is_asked:
            raise Unimplemented(f"This server does not answer {field} yet.", field=field)


def _variables(given: Mapping[str, str]) -> dict[str, str]:
    """What stands for `{{name}}` in blocks and in the system prompt."""
    for name in given:
        if not name.strip() or name != name.strip() or set(name) & set("{}"):
            raise InvalidArgument(
                f"memory_variables has a name that cannot stand between braces: {name[:64]!r}.",
                field="memory_variables",
            )
    return dict(given)


def _block_from_proto(block: blocks_pb2.Block, place: int, variables: Mapping[str, str]) -> NewBlock:
    if not block.label:
        raise InvalidArgument(f"blocks[{place}].label is required.", field=f"blocks[{place}].label")
    return NewBlock(
        label=block.label,
        value=filled(block.value, variables),
        description=block.description if block.HasField("description") else None,
        limit=block.limit,
        read_only=block.read_only,
        metadata=block.metadata if block.HasField("metadata") else None,
        tags=tuple(block.tags),
    )


def require_name(name: str) -> str:
    """An agent's name, or "" for a made-up one."""
    if len(name) > _LONGEST_NAME or any(ord(character) < ord(" ") for character in name):
        raise InvalidArgument(
            f"agent.name must be at most {_LONGEST_NAME} characters without control characters.", field="agent.name"
        )
    return name


def new_name_from_proto(agent: pb.Agent) -> str:
    """The name that an agent changes to, which cannot be left out."""
    if not agent.name:
        raise InvalidArgument("agent.name must not be empty.", field="agent.name")
    return require_name(agent.name)


def _system(text: str) -> str:
    if len(text) > LONGEST_PROMPT or "\0" in text:
        raise InvalidArgument(
            f"agent.system must be at most {LONGEST_PROMPT} characters, none NUL.", field="agent.system"
        )
    return text


def require_prompt_key(key: str, field: str = "system_prompt_key") -> str:
    """The key of a system prompt, which cannot be left empty."""
    if not key:
        raise InvalidArgument(f"{field} must not be empty.", field=field)
    return require_plain(key, field)


def two_prompts() -> InvalidArgument:
    """The error for a prompt that is given both by its text and by its key."""
    return InvalidArgument("system_prompt_key and agent.system exclude each other.", field="system_prompt_key")


def system_from_proto(agent: pb.Agent) -> str:
    """The system prompt's template."""
    return _system(agent.system)


def rules_from_proto(agent: pb.Agent) -> tuple[ToolRule, ...]:
    """The agent's rules, checked, equal ones once.

    Raises:
        InvalidArgument: naming the rule.
    """
    return checked_rules(
        (rule_from_proto(rule, f"agent.tool_rules[{place}]") for place, rule in enumerate(agent.tool_rules)),
        "agent.tool_rules",
    )


def tags_from_proto(agent: pb.Agent) -> tuple[str, ...]:
    """The agent's tags, equal ones once."""
    if any(not tag or len(tag) > _LONGEST_NAME or "\0" in tag for tag in agent.tags):
        raise InvalidArgument("agent.tags must be 1 to 512 characters each, none NUL.", field="agent.tags")
    return tuple(dict.fromkeys(agent.tags))


def metadata_from_proto(agent: pb.Agent) -> str | None:
    """The agent's metadata: the text of a JSON object."""
    if not agent.HasField("metadata"):
        return None
    return require_json_object(agent.metadata, "agent.metadata")


def require_time_zone(name: str) -> str:
    """An IANA time zone's name."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidArgument(
            f"agent.time_zone {name[:64]!r} is no IANA time zone.", field="agent.time_zone"
        ) from error
    return name


def policy_from_proto(agent: pb.Agent) -> PromptPolicy:
    """When the stored system message follows memory."""
    policy = _POLICIES_BACK.get(agent.prompt_policy)
    if policy is None:
        raise InvalidArgument("agent.prompt_policy is not known.", field="agent.prompt_policy")
    return policy


def provenance_from_proto(agent: pb.Agent) -> Provenance:
    """The ids that a client keeps with an agent; authorship is the server's."""
    return shared.provenance_from_proto(agent.provenance)


def continuation_from_proto(agent: pb.Agent) -> str | None:
    """What the agent is told behind its tools, or None. Raises InvalidArgument, naming the field."""
    if not agent.HasField("continuation_message"):
        return None
    text = agent.continuation_message
    if not text.strip() or len(text) > _LONGEST_CONTINUATION or "\0" in text:
        raise InvalidArgument(
            f"agent.continuation_message must be 1 to {_LONGEST_CONTINUATION} characters, not all blank, none NUL.",
            field="agent.continuation_message",
        )
    return text


def identities_from_proto(agent: pb.Agent) -> tuple[str, ...]:
    """The ids of an agent's identities, each once. Raises InvalidArgument, naming the field."""
    ids = (require_id(identity_id, "identity", "agent.identity_ids") for identity_id in agent.identity_ids)
    return tuple(dict.fromkeys(ids))


def filter_from_proto(given: rpc.AgentFilter) -> AgentFilter:
    """Which agents a list or count looks at.

    Raises:
        InvalidArgument: naming the filter.
    """
    origins = present(given, *LinkKind.of_origin())
    links = [(LinkKind(kind), require_plain(value, f"filter.{kind}")) for kind, value in origins.items()]
    for kind in (LinkKind.IDENTITY, LinkKind.TOOL):
        field = f"{kind}_id"
        links += [(kind, require_id(value, kind, f"filter.{field}")) for value in present(given, field).values()]
    reason = None
    if given.HasField("last_stop_reason"):
        reason = require_known(STOP_REASONS_BACK, given.last_stop_reason, "filter.last_stop_reason").value
    texts = present(given, "name", "text_search", "identifier_key")
    return AgentFilter(
        agent_ids=tuple(require_id(agent_id, "agent", "filter.agent_ids") for agent_id in given.agent_ids),
        **{name: require_plain(text, f"filter.{name}") for name, text in texts.items()},
        tags_any=tuple(require_plain(tag, "filter.tags_any") for tag in given.tags_any),
        tags_all=tuple(require_plain(tag, "filter.tags_all") for tag in given.tags_all),
        types=tuple(require_known(_TYPES_BACK, kind, "filter.types") for kind in given.types),
        hidden=given.hidden if given.HasField("hidden") else None,
        last_stop_reason=reason,
        links=tuple(links),
    )
