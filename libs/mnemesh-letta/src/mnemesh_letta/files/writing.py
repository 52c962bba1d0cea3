"""Writes the records of agents as a Letta agent file (.af)."""

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Final

from mnemesh.agents.v1.agent_records_pb2 import AgentRecord, BlockRecord
from mnemesh.agents.v1.agents_pb2 import AGENT_TYPE_LETTA_V1, Agent
from mnemesh.agents.v1.conversations_pb2 import Conversation
from mnemesh.agents.v1.groups_pb2 import Group
from mnemesh.blocks.v1.blocks_pb2 import Block
from mnemesh.files.v1.files_pb2 import Folder
from mnemesh.tools.v1 import tools_pb2
from mnemesh.types.v1.message_pb2 import Message
from mnemesh_kit.errors import NotFound

from mnemesh_letta.convert.messages import letta_message
from mnemesh_letta.convert.resources import TYPE_OF_BUILTIN
from mnemesh_letta.convert.settings import (
    embedding_config,
    letta_compaction,
    letta_response_format,
    letta_rule,
    llm_config,
)
from mnemesh_letta.convert.values import AGENT_TYPE_NAMES, fields_of, json_value, present

_REVISION: Final = "1c28e167b74f"
"""The schema of Letta 0.16.7, which its importer expects."""
_OF_AGENTS: Final = ("name", "description", "system", "tags", "message_buffer_autoclear", "timezone", "max_files_open")
_LEFT_TO_THE_IMPORTER: Final = {
    "memory_blocks": [],
    "tools": [],
    "include_base_tools": False,
    "include_multi_agent_tools": False,
    "include_base_tool_rules": False,
    "include_default_source": False,
    "enable_sleeptime": False,
}
_OF_BLOCKS: Final = (
    *("label", "value", "limit", "description", "read_only", "is_template", "template_name"),
    "preserve_on_migration",
)


def write_agent_file(agents: Sequence[Sequence[AgentRecord]], *, conversation_id: str | None = None) -> dict[str, Any]:
    """Returns the JSON of an agent file. What several agents share is in it once.

    Left out, because the format has no place for it: passages, runs, steps, revisions of blocks, identities, and all
    conversations of an agent but one.

    Args:
        agents: the records of each agent, as ExportAgent sends them.
        conversation_id: the conversation whose messages, window and blocks the file has; None is the default one.

    Raises:
        NotFound: an agent does not have the conversation.
    """
    writer = _FileWriter(conversation_id)
    for records in agents:
        writer.number(records)
    for records in agents:
        writer.add(records)
    return writer.data


class _FileWriter:
    def __init__(self, conversation_id: str | None) -> None:
        self._conversation_id = conversation_id
        lists = ("agents", "groups", "blocks", "files", "sources", "tools", "mcp_servers", "skills")
        self.data: dict[str, Any] = {**{name: [] for name in lists}, "metadata": {"revision_id": _REVISION}}
        self.data["created_at"] = None
        self._ids: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def number(self, records: Iterable[AgentRecord]) -> None:
        """Gives the agent its id in the file, so that groups of other agents can name it."""
        for record in records:
            if record.HasField("agent"):
                self._id("agent", record.agent.id)

    def _id(self, prefix: str, id_: str) -> str:
        if id_ not in self._ids:
            number = self._counts.get(prefix, 0)
            self._counts[prefix] = number + 1
            self._ids[id_] = f"{prefix}-{number}"
        return self._ids[id_]

    def add(self, records: Sequence[AgentRecord]) -> None:
        of = {kind: [record for record in records if record.WhichOneof("record") == kind] for kind in _KINDS}
        agent = of["agent"][0].agent
        conversation = self._conversation(agent, [record.conversation for record in of["conversation"]])
        window = list(conversation.message_ids)
        shown = [r.message for r in of["message"] if _is_shown(r.message, conversation, set(window))]
        messages = [
            letta_message(
                message,
                self._id("message", message.id),
                self._ids,
                agent.time_zone,
                thinks_in_text=agent.type != AGENT_TYPE_LETTA_V1,
            )
            for message in shown
        ]
        self.data["agents"].append(
            {
                **self._settings(agent),
                "id": self._id("agent", agent.id),
                "tool_ids": self._tools(agent, [record.tool for record in of["tool"]]),
                "block_ids": [self._block(block) for block in _held(conversation, [r.block for r in of["block"]])],
                "source_ids": [self._source(r.folder) for r in of["folder"]],
                "messages": messages,
                "in_context_message_ids": [self._ids[id_] for id_ in window if id_ in self._ids],
                "files_agents": [],
                "group_ids": [self._group(r.group) for r in of["group"] if self._is_complete(r.group)],
            }
        )

    def _conversation(self, agent: Agent, conversations: Sequence[Conversation]) -> Conversation:
        if self._conversation_id is None:
            default = Conversation(id=agent.default_conversation_id, is_default=True)
            return next((each for each in conversations if each.is_default), default)
        for each in conversations:
            if each.id == self._conversation_id:
                return each
        raise NotFound(f"{agent.id} has no conversation {self._conversation_id}.")

    def _settings(self, agent: Agent) -> dict[str, Any]:
        return {
            **fields_of(agent, *_OF_AGENTS),
            **_LEFT_TO_THE_IMPORTER,
            "agent_type": AGENT_TYPE_NAMES.get(agent.type, "letta_v1_agent"),
            "tool_rules": [letta_rule(rule) for rule in agent.tool_rules],
            "metadata": json_value(agent.metadata) or None,
            "llm_config": llm_config(agent),
            "embedding_config": embedding_config(agent.embedder, 300),
            "compaction_settings": letta_compaction(agent),
            "tool_exec_environment_variables": {secret.key: "" for secret in agent.secrets},
            "response_format": letta_response_format(agent),
            "per_file_view_window_char_limit": agent.per_file_view_window_char_limit or None,
            "hidden": agent.hidden or None,
        }

    def _tools(self, agent: Agent, custom: Sequence[tools_pb2.Tool]) -> list[str]:
        """The ids of an agent's tools in their order. MCP tools and tools of mnemesh alone have no place in it."""
        known = {tool.name: tool for tool in custom if tool.type == tools_pb2.TOOL_TYPE_CUSTOM}
        return [
            self._builtin(tool.name) if tool.builtin else self._tool(known[tool.name])
            for tool in agent.tools
            if (tool.name in TYPE_OF_BUILTIN if tool.builtin else tool.name in known)
        ]

    def _once(self, prefix: str, id_: str, shown: Callable[[], dict[str, Any]]) -> str:
        """Returns the id of a resource in the file, which several agents may share: its fields are in it once."""
        is_new = id_ not in self._ids
        new_id = self._id(prefix, id_)
        if is_new:
            self.data[f"{prefix}s"].append({"id": new_id, **shown()})
        return new_id

    def _builtin(self, name: str) -> str:
        kind = TYPE_OF_BUILTIN[name]
        return self._once("tool", f"builtin/{name}", lambda: {"name": name, "tool_type": kind, "source_type": "python"})

    def _tool(self, tool: tools_pb2.Tool) -> str:
        is_typescript = tool.source_type == tools_pb2.SOURCE_TYPE_TYPESCRIPT
        is_of_client = tool.type == tools_pb2.TOOL_TYPE_CLIENT
        return self._once(
            "tool",
            tool.id,
            lambda: {
                **fields_of(tool, "name", "description", "enable_parallel_execution", "tags"),
                "tool_type": "custom",
                "source_type": "json" if is_of_client else "typescript" if is_typescript else "python",
                "source_code": None if is_of_client else tool.source_code,
                "json_schema": json_value(tool.json_schema) or None,
                "args_json_schema": json_value(tool.args_json_schema) or None,
                "return_char_limit": tool.return_char_limit or 50_000,
                "pip_requirements": _requirements(tool.pip_requirements),
                "npm_requirements": _requirements(tool.npm_requirements),
                "default_requires_approval": tool.default_requires_approval or None,
                "metadata_": json_value(tool.metadata) or {},
            },
        )

    def _block(self, block: Block) -> str:
        return self._once(
            "block",
            block.id,
            lambda: {
                **fields_of(block, *_OF_BLOCKS),
                "metadata": json_value(block.metadata) or {},
                "hidden": block.hidden or None,
                "tags": list(block.tags) or None,
            },
        )

    def _source(self, folder: Folder) -> str:
        return self._once(
            "source",
            folder.id,
            lambda: {
                **fields_of(folder, "name", "description", "instructions"),
                "metadata": json_value(folder.metadata) or None,
                "embedding_config": embedding_config(folder.embedder, folder.chunk_size),
            },
        )

    def _is_complete(self, group: Group) -> bool:
        """Whether all agents of a group are in the file."""
        kind = group.manager_config.WhichOneof("config")
        manager = getattr(getattr(group.manager_config, kind), "manager_agent_id", "") if kind else ""
        return all(id_ in self._ids for id_ in (*group.agent_ids, *([manager] if manager else ())))

    def _group(self, group: Group) -> str:
        return self._once("group", group.id, lambda: self._group_fields(group))

    def _group_fields(self, group: Group) -> dict[str, Any]:
        kind = group.manager_config.WhichOneof("config") or "round_robin"
        inner = getattr(group.manager_config, kind)
        config = {"manager_type": kind, **{field.name: value for field, value in inner.ListFields()}}
        if "manager_agent_id" in config:
            config["manager_agent_id"] = self._ids[config["manager_agent_id"]]
        return {
            "agent_ids": [self._ids[member] for member in group.agent_ids],
            "description": group.description,
            "manager_config": config,
            "shared_block_ids": [self._ids[block] for block in group.shared_block_ids if block in self._ids],
            "hidden": group.hidden or None,
        }


_KINDS: Final = ("agent", "tool", "block", "folder", "conversation", "message", "group")


def _is_shown(message: Message, conversation: Conversation, window: Container[str]) -> bool:
    """Returns whether a message belongs to a conversation. A fork has messages of others in its window."""
    own = message.conversation_id == conversation.id or (conversation.is_default and not message.conversation_id)
    return own or message.id in window


def _held(conversation: Conversation, records: Sequence[BlockRecord]) -> list[Block]:
    """Returns the blocks that a conversation shows: its own in place of those of the agent with the same labels."""
    own = [record.block for record in records if record.conversation_id == conversation.id]
    labels = {block.label for block in own}
    shared = [record.block for record in records if not record.HasField("conversation_id")]
    return [*(block for block in shared if block.label not in labels), *own]


def _requirements(values: Iterable[Any]) -> list[dict[str, Any]] | None:
    return [{"name": item.name, "version": present(item, "version")} for item in values] or None
