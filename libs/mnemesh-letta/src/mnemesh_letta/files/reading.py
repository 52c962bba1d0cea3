"""Reads a Letta agent file (.af) as the records of its agents."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.agents.v1.agent_records_pb2 import AgentRecord, BlockRecord, RecordsEnd, RecordsHeader
from mnemesh.agents.v1.agents_pb2 import Agent, AttachedTool
from mnemesh.agents.v1.conversations_pb2 import Conversation
from mnemesh.agents.v1.groups_pb2 import Group
from mnemesh.blocks.v1.blocks_pb2 import Block
from mnemesh.tools.v1.tools_pb2 import TOOL_TYPE_MCP, Tool
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id
from mnemesh_kit.json_bounds import require_bounded_json
from mnemesh_kit.unicode import well_formed_value

from mnemesh_letta.convert import resources
from mnemesh_letta.convert.messages import MessageReader
from mnemesh_letta.convert.settings import agent as agent_settings
from mnemesh_letta.convert.settings import model_handle, tool_rule
from mnemesh_letta.convert.values import Row, moment, timestamp

MAX_VALUES: Final = 500_000
"""How many values an agent file may have: about 15,000 messages."""
_ENCODINGS: Final = 4
"""How often a file may be encoded as JSON."""
LISTS: Final = ("agents", "groups", "blocks", "files", "sources", "tools", "mcp_servers", "skills")


def decoded(data: object) -> dict[str, Any]:
    """Returns the JSON object of an agent file, whose strings are well-formed.

    Args:
        data: the bytes or the text of the file, or its JSON.

    Raises:
        InvalidArgument: it is not a JSON object of an agent file. The field is "agents" or "file".
        TooManyValues: it has more than `MAX_VALUES` values.
    """
    for _ in range(_ENCODINGS):
        if not isinstance(data, str | bytes):
            break
        data = _parsed(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)
    if isinstance(data, dict) and "agents" not in data and isinstance(data.get("agent_file"), str | dict):
        return decoded(data["agent_file"])
    if isinstance(data, dict) and "core_memory" in data and "agents" not in data:
        data = _from_legacy(data)
    if not isinstance(data, dict) or not isinstance(data.get("agents"), list) or not data["agents"]:
        raise InvalidArgument("This is not an agent file of Letta: it has no agents.", field="agents")
    try:
        readable: dict[str, Any] = well_formed_value(data)
    except RecursionError as error:
        raise InvalidArgument("This agent file is nested too deeply.", field="agents") from error
    return readable


def _parsed(text: bytes) -> object:
    text = text.removeprefix(b"\xef\xbb\xbf")
    require_bounded_json(text, MAX_VALUES)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"The file is not JSON: {error}", field="file") from error


def _from_legacy(agent: dict[str, Any]) -> dict[str, Any]:
    """Returns the present form of a file with one agent. Its messages, blocks and tools get ids; they have none."""
    messages = [{"id": f"message-{n}", **row} for n, row in enumerate(_legacy_rows(agent, "messages"))]
    window = agent.get("in_context_message_indices")
    places = window if isinstance(window, list) else range(len(messages))
    blocks = [{"id": f"block-{n}", **row} for n, row in enumerate(_legacy_rows(agent, "core_memory"))]
    tools = [{"id": f"tool-{n}", **row} for n, row in enumerate(_legacy_rows(agent, "tools"))]
    secrets = agent.get("tool_exec_environment_variables")
    present = {
        **{key: value for key, value in agent.items() if key not in _LEGACY_ONLY},
        "id": "agent-0",
        "messages": messages,
        "in_context_message_ids": [
            messages[place]["id"] for place in places if isinstance(place, int) and 0 <= place < len(messages)
        ],
        "block_ids": [row["id"] for row in blocks],
        "tool_ids": [row["id"] for row in tools],
        "tags": [tag.get("tag") if isinstance(tag, dict) else tag for tag in agent.get("tags") or ()],
        "tool_exec_environment_variables": {row.get("key", ""): "" for row in secrets if isinstance(row, dict)}
        if isinstance(secrets, list)
        else secrets,
    }
    return {"agents": [present], "blocks": blocks, "tools": tools, "created_at": agent.get("created_at")}


_LEGACY_ONLY: Final = frozenset(
    {"core_memory", "tools", "in_context_message_indices", "multi_agent_group", "version", "messages"}
)


def _legacy_rows(agent: dict[str, Any], name: str) -> list[dict[str, Any]]:
    rows = agent.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


MAX_AGENTS: Final = 1_000
"""How many agents an agent file may have."""
_MAX_RECORDS: Final = 200_000
_MAX_RECORD_BYTES: Final = 256 << 20
"""The most bytes of the records of a file: agents that share a large tool have a copy each."""
_MAX_NOTES: Final = 1_000
_UNREADABLE: Final = (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)
_FIELDS: Final = frozenset(
    {
        *("name", "memory_blocks", "tools", "tool_ids", "source_ids", "folder_ids", "block_ids", "tool_rules", "tags"),
        *("system", "agent_type", "initial_message_sequence", "include_base_tools", "include_multi_agent_tools"),
        *("include_base_tool_rules", "include_default_source", "description", "metadata", "metadata_", "llm_config"),
        *("embedding_config", "model", "embedding", "model_settings", "compaction_settings", "context_window_limit"),
        *("embedding_chunk_size", "max_tokens", "max_reasoning_tokens", "enable_reasoner", "reasoning"),
        *("from_template", "template", "project", "tool_exec_environment_variables", "secrets", "memory_variables"),
        *("project_id", "template_id", "base_template_id", "deployment_id", "entity_id", "identity_ids"),
        *("message_buffer_autoclear", "enable_sleeptime", "response_format", "timezone", "max_files_open"),
        *("per_file_view_window_char_limit", "hidden", "parallel_tool_calls", "id", "in_context_message_ids"),
        *("messages", "files_agents", "group_ids", "created_at", "updated_at", "last_run_completion"),
        *("last_run_duration_ms", "last_stop_reason", "per_file_view_window_char_limit", "created_by_id"),
        *("last_updated_by_id", "organization_id", "managed_group", "multi_agent_group"),
    }
)
"""The fields of agents in Letta's files. Those that are not read have no meaning in a file, or are read elsewhere."""
_LISTS_OF_AGENTS: Final = (
    *("tool_ids", "source_ids", "folder_ids", "block_ids", "memory_blocks", "tool_rules", "tags", "messages"),
    "in_context_message_ids",
)
_FILE_FIELDS: Final = frozenset({*LISTS, "created_at", "revision_id", "metadata"})


@dataclass(frozen=True, slots=True)
class FolderText:
    """A file of a folder, with the text that Letta keeps of it."""

    folder: str
    """The name of the folder."""
    name: str
    text: str


@dataclass(slots=True)
class AgentFile:
    """The contents of an agent file."""

    agents: dict[str, list[AgentRecord]]
    """The records of each agent by its new id, in the order of the file."""
    files: list[FolderText]
    mcp_servers: list[dict[str, Any]]
    blocks: list[Block] = field(default_factory=list)
    """The blocks that no agent holds."""
    left_out: list[str] = field(default_factory=list)
    """What the records do not have, and why: a sentence each."""


def read_agent_file(data: object, namespace: str) -> AgentFile:
    """Returns the contents of an agent file. What cannot be read is left out, and named in `left_out`.

    Args:
        data: the bytes or the text of the file, or its JSON.
        namespace: the ids of the records are derived from it and from those of the file. Reading the file again with
            the same one gives the same ids.

    Raises:
        InvalidArgument: it is not an agent file of Letta, none of its agents can be read, or it has too many of them.
            The field names the place.
        TooManyValues: it is too large.
    """
    file = decoded(data)
    if len(file["agents"]) > MAX_AGENTS:
        raise InvalidArgument(f"An agent file may have at most {MAX_AGENTS:,} agents.", field="agents")
    return _FileReader(file, namespace).read()


class _FileReader:
    def __init__(self, data: Mapping[str, Any], namespace: str) -> None:
        self._namespace = namespace
        self._data = data
        self._left_out: list[str] = []
        self._rows = {name: self._rows_of(name) for name in LISTS}
        self._held: set[str] = set()
        self._records_left, self._bytes_left = _MAX_RECORDS, _MAX_RECORD_BYTES
        # An agent file dates messages only. Everything else gets the time of the export.
        self._times = {"created_at": datetime.now(UTC)}
        with self._leaving("The time of the export"):
            self._times = {"created_at": moment(data.get("created_at")) or datetime.now(UTC)}
        self._groups_of = self._group_ids()

    def read(self) -> AgentFile:
        agents: dict[str, list[AgentRecord]] = {}
        first_error: Exception | None = None
        for index, row in enumerate(self._data["agents"]):
            try:
                if not isinstance(row, dict):
                    raise TypeError("it must be an object")
                key = row.get("id")
                key = key if isinstance(key, str) and key else f"agent-{index}"
                agent_id = self._id("agent", key)
                if agent_id in agents:
                    raise ValueError(f"another agent has the id {key}")
                agents[agent_id] = self._bounded(self._records({**row, "id": key}))
            except _UNREADABLE as error:
                first_error = first_error or error
                self._leave(f"agents[{index}] cannot be read: {_reason(error)}.")
        if not agents:
            raise InvalidArgument(
                f"agents[0] cannot be read: {_reason(first_error)}", field="agents[0]"
            ) from first_error
        self._leave_skills()
        unread = [key for key in self._data if key not in _FILE_FIELDS and self._data[key]]
        if unread:
            self._leave(f"Fields of the file that are not known: {_names(unread)}.")
        return AgentFile(agents, list(self._texts()), self._servers(), self._other_blocks(), self._left_out)

    def _rows_of(self, name: str) -> dict[str, dict[str, Any]]:
        rows = self._data.get(name) or []
        if not isinstance(rows, list):
            self._leave(f"{name}: it is not a list.")
            return {}
        found = {}
        for index, row in enumerate(rows if name != "agents" else ()):
            if not isinstance(row, dict):
                self._leave(f"{name}[{index}]: it is not an object.")
                continue
            key = row.get("id")
            found[key if isinstance(key, str) else f"{name}[{index}]"] = row
        return found

    def _leave(self, note: str) -> None:
        if len(self._left_out) < _MAX_NOTES:
            self._left_out.append(note)
        elif len(self._left_out) == _MAX_NOTES:
            self._left_out.append("More was left out.")

    @contextmanager
    def _leaving(self, what: str) -> Iterator[None]:
        """Leaves a part out that cannot be read."""
        try:
            yield
        except _UNREADABLE as error:
            self._leave(f"{what}: {_reason(error)}.")

    def _bounded(self, records: Iterator[AgentRecord]) -> list[AgentRecord]:
        found = []
        for record in records:
            self._records_left -= 1
            self._bytes_left -= record.ByteSize()
            if self._records_left < 0 or self._bytes_left < 0:
                raise InvalidArgument(
                    f"This agent file is too large: its agents need more than {_MAX_RECORDS:,} records or "
                    f"{_MAX_RECORD_BYTES >> 20} MB. Import its agents one by one.",
                    field="agents",
                )
            found.append(record)
        return found

    def _texts(self) -> Iterator[FolderText]:
        for key, row in self._rows["files"].items():
            content, source = row.get("content"), self._rows["sources"].get(str(row.get("source_id")))
            with self._leaving(f"The file {row.get('file_name') or key}"):
                if content is not None and not isinstance(content, str):
                    raise TypeError("its content must be a text")
                if content:
                    if source is None:
                        raise ValueError("its folder is missing")
                    yield FolderText(str(source["name"]), resources.file_name(row), content)

    def _servers(self) -> list[dict[str, Any]]:
        servers = []
        for index, row in enumerate(self._rows["mcp_servers"].values()):
            if isinstance(row.get("server_name"), str):
                servers.append(row)
            else:
                self._leave(f"mcp_servers[{index}]: it has no server_name.")
        return servers

    def _other_blocks(self) -> list[Block]:
        """Returns the blocks that no agent of the file holds. Tools that no agent has are left out."""
        blocks = []
        for key, row in self._rows["blocks"].items():
            if key not in self._held:
                with self._leaving(f"The block {key}"):
                    blocks.append(self._block(row, key).block.block)
        for key, row in self._rows["tools"].items():
            if key not in self._held:
                self._leave(f"The tool {row.get('name')}: no agent of the file has it.")
        for key, row in self._rows["sources"].items():
            if key not in self._held:
                self._leave(f"The folder {row.get('name')}: no agent of the file has it.")
        return blocks

    def _leave_skills(self) -> None:
        names = [str(row.get("name") or key) for key, row in self._rows["skills"].items()]
        if names:
            self._leave(f"Skills, which agents do not have here: {_names(names)}.")

    def _time(self) -> Timestamp | None:
        return timestamp(self._times["created_at"])

    def _id(self, prefix: str, id_: str) -> str:
        return derive_id(prefix, self._namespace, id_)

    def _records(self, row: Row) -> Iterator[AgentRecord]:
        yield AgentRecord(header=RecordsHeader(format_version=1, source="letta/0.16", export_time=self._time()))
        count = 1
        for record in self._resources(row):
            count += 1
            yield record
        yield AgentRecord(end=RecordsEnd(record_count=count))

    def _resources(self, row: Row) -> Iterator[AgentRecord]:
        agent = self._agent(row)
        custom = []
        for id_ in _ids(row, "tool_ids"):
            tool = self._rows["tools"].get(id_)
            self._held.add(id_)
            if tool is None:
                self._leave(f"A tool of {agent.name}: the file has no tool {id_}.")
                continue
            with self._leaving(f"The tool {tool.get('name') or id_} of {agent.name}"):
                if (record := self._tool(agent, tool, id_)) is not None:
                    custom.append(record)
        yield AgentRecord(agent=agent)
        for record in custom:
            yield AgentRecord(tool=record)
        for id_ in _ids(row, "source_ids") or _ids(row, "folder_ids"):
            self._held.add(id_)
            folder = self._rows["sources"].get(id_)
            if folder is None:  # Letta exports a folder without files as its id alone.
                self._leave(f"A folder of {agent.name}: the file has no name of {id_}.")
                continue
            with self._leaving(f"The folder {id_} of {agent.name}"):
                yield AgentRecord(folder=resources.folder({**self._times, **folder, "id": self._id("source", id_)}))
        yield from self._blocks(row, agent.name)
        yield from self._messages(row, agent)
        for id_ in self._groups_of.get(row["id"], ()):
            with self._leaving(f"The group {id_}"):
                yield AgentRecord(group=self._group(self._rows["groups"][id_], id_))

    def _agent(self, row: Row) -> Agent:
        name = row.get("name") or row["id"]
        unread = [key for key in row if key not in _FIELDS and row[key]]
        if unread:
            self._leave(f"Fields of {name} that are not known: {_names(unread)}.")
        for key in _LISTS_OF_AGENTS:
            if row.get(key) is not None and not isinstance(row[key], list):
                self._leave(f"{key} of {name}: it is not a list.")
        rules = []
        for rule in _list(row, "tool_rules"):
            with self._leaving(f"A tool rule of {name}"):
                if not rule.get("tool_name"):
                    raise ValueError("it names no tool")
                tool_rule(rule)
                rules.append(rule)
        secrets = {**_object(row, "tool_exec_environment_variables"), **_object(row, "secrets")}
        given = {
            **self._times,
            **row,
            "id": self._id("agent", row["id"]),
            "name": str(name),
            "tool_rules": rules,
            "model": row.get("model") or None,
        }
        more: dict[str, Any] = {"tags": _texts(row, "tags"), "secrets": secrets, "identity_ids": ()}
        try:
            agent = agent_settings(given, **more)
        except _UNREADABLE:
            agent = agent_settings(self._readable_settings(given, more, str(name)), **more)
        agent.default_conversation_id = derive_id("conv", agent.id)
        return agent

    def _readable_settings(self, given: Row, more: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Returns the settings without those that cannot be read."""
        found: dict[str, Any] = {"id": given["id"], "name": name}
        for key, value in given.items():
            if key == "llm_config" and isinstance(value, dict):
                parts = {"handle": model_handle(value), **value}
                found[key] = {}
                for part, setting in parts.items():
                    with self._leaving(f"The setting llm_config.{part} of {name}"):
                        agent_settings({**found, key: {**found[key], part: setting}}, **more)
                        found[key] = {**found[key], part: setting}
                continue
            with self._leaving(f"The setting {key} of {name}"):
                agent_settings({**found, key: value}, **more)
                found[key] = value
        return found

    def _tool(self, agent: Agent, tool: Row, id_: str) -> Tool | None:
        """Attaches a tool. Returns it if it needs a record."""
        kind, name = tool.get("tool_type") or "custom", str(tool["name"])
        if resources.is_builtin_tool(tool):
            agent.tools.append(AttachedTool(name=name, builtin=True))
            return None
        if kind == "external_mcp":
            record = Tool(id=self._id("tool", id_), name=name, type=TOOL_TYPE_MCP)
        elif kind != "custom":
            raise ValueError(f"tools of the type {kind} have no code")
        elif not resources.is_runnable(tool):
            raise ValueError("it has no source code")
        else:
            record = resources.custom_tool({**self._times, **tool, "id": self._id("tool", id_)})
        agent.tools.append(AttachedTool(tool_id=record.id, name=name))
        return record

    def _blocks(self, row: Row, name: str) -> Iterator[AgentRecord]:
        for id_ in _ids(row, "block_ids"):
            self._held.add(id_)
            if id_ not in self._rows["blocks"]:
                self._leave(f"A block of {name}: the file has no block {id_}.")
                continue
            with self._leaving(f"The block {id_} of {name}"):
                yield self._block(self._rows["blocks"][id_], id_)
        for number, block in enumerate(_list(row, "memory_blocks")):
            with self._leaving(f"memory_blocks[{number}] of {name}"):
                yield self._block(block, f"{row['id']}/{number}")

    def _block(self, row: Row, key: str) -> AgentRecord:
        block = resources.block({**self._times, **row, "id": self._id("block", key)}, tags=_texts(row, "tags"))
        if block.label != row["label"]:
            self._leave(f"The label {row['label']!r} of a block is {block.label} here.")
        return AgentRecord(block=BlockRecord(block=block))

    def _messages(self, row: Row, agent: Agent) -> Iterator[AgentRecord]:
        conversation_id = derive_id("conv", agent.id)
        reader = MessageReader(
            agent.id, (agent.model or "unknown").split("/", 1)[0], agent_type=row.get("agent_type") or "memgpt_v2_agent"
        )
        messages, known = [], set()
        for number, message in enumerate(_list(row, "messages")):
            with self._leaving(f"messages[{number}] of {agent.name}"):
                key = str(message.get("id") or f"message-{number}")
                if key in known:
                    raise ValueError(f"another message has the id {key}")
                request = message.get("approval_request_id")
                given = {
                    **message,
                    "id": self._message_id(row, key),
                    "approval_request_id": request and self._message_id(row, str(request)),
                    "group_id": None,
                }
                messages.append(reader.read(given, conversation_id=conversation_id))
                known.add(key)
        window = [self._message_id(row, id_) for id_ in _ids(row, "in_context_message_ids") if id_ in known]
        yield AgentRecord(
            conversation=Conversation(
                id=conversation_id,
                agent_id=agent.id,
                is_default=True,
                message_ids=window,
                create_time=self._time(),
                update_time=self._time(),
            )
        )
        for read in messages:
            yield AgentRecord(message=read)

    def _message_id(self, row: Row, id_: str) -> str:
        return self._id("message", f"{row['id']}/{id_}")

    def _group_ids(self) -> dict[str, list[str]]:
        """Returns the groups of each agent, its managers among them."""
        found: dict[str, list[str]] = {}
        known = {row["id"] for row in self._data["agents"] if isinstance(row, dict) and isinstance(row.get("id"), str)}
        for key, group in self._rows["groups"].items():
            with self._leaving(f"The group {key}"):
                manager = _object(group, "manager_config").get("manager_agent_id")
                members = {*_ids(group, "agent_ids"), *((manager,) if manager else ())}
                if not members <= known:
                    raise ValueError(f"the file has no agent {_names(sorted(members - known))}")
                for member in members:
                    found.setdefault(member, []).append(key)
        return found

    def _group(self, group: Row, key: str) -> Group:
        config = _object(group, "manager_config")
        manager = config.get("manager_agent_id")
        fields = {**self._times, **config, "id": self._id("group", key), "description": group.get("description")}
        fields["manager_agent_id"] = manager and self._id("agent", manager)
        shared = [id_ for id_ in _ids(group, "shared_block_ids") if id_ in self._rows["blocks"]]
        return resources.group(
            fields,
            [self._id("agent", id_) for id_ in _ids(group, "agent_ids")],
            [self._id("block", id_) for id_ in shared],
        )


def _list(row: Row, key: str) -> list[Any]:
    value = row.get(key)
    return value if isinstance(value, list) else []


def _ids(row: Row, key: str) -> list[str]:
    """Returns the ids of a field, each once."""
    return list(dict.fromkeys(id_ for id_ in _list(row, key) if isinstance(id_, str)))


def _texts(row: Row, key: str) -> list[str]:
    return [text for text in _list(row, key) if isinstance(text, str)]


def _object(row: Row, key: str) -> dict[str, Any]:
    value = row.get(key)
    return value if isinstance(value, dict) else {}


def _names(names: Iterable[str]) -> str:
    listed = [name[:100] for name in names]
    return ", ".join(listed[:20]) + (f" and {len(listed) - 20} more" if len(listed) > 20 else "")


def _reason(error: BaseException | None) -> str:
    text = str(error) if error is not None else "it is empty"
    return f"{text} is missing" if isinstance(error, KeyError) else text.rstrip(".")[:300]
