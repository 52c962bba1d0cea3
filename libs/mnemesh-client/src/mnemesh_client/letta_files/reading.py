"""Reads a Letta agent file (.af) as the records of its agents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.agents.v1.agent_records_pb2 import AgentRecord, BlockRecord, RecordsEnd, RecordsHeader
from mnemesh.agents.v1.agents_pb2 import AttachedTool
from mnemesh.agents.v1.conversations_pb2 import Conversation
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id
from mnemesh_kit.unicode import well_formed_value

from mnemesh_client.letta_files import resources
from mnemesh_client.letta_files.agents import agent as agent_settings
from mnemesh_client.letta_files.messages import MessageReader
from mnemesh_client.letta_files.values import Row, timestamp

_LISTS = ("agents", "groups", "blocks", "files", "sources", "tools", "mcp_servers")


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
    left_out: list[str] = field(default_factory=list)
    """What the records do not have, and why: a sentence each."""


def read_agent_file(data: object, namespace: str) -> AgentFile:
    """Returns the contents of an agent file.

    Args:
        data: the JSON of the file.
        namespace: the ids of the records are derived from it and from those of the file. Reading the file again with
            the same one gives the same ids.

    Raises:
        InvalidArgument: it is no agent file of Letta 0.16. The field names the place.
    """
    if not isinstance(data, dict) or not isinstance(data.get("agents"), list) or not data["agents"]:
        raise InvalidArgument(_why_no_agents(data), field="agents")
    for name in _LISTS:
        if not isinstance(data.get(name) or [], list):
            raise InvalidArgument(f"{name} must be a list.", field=name)
        for index, row in enumerate(data.get(name) or ()):
            if not isinstance(row, dict) or not isinstance(row.get("id"), str):
                raise InvalidArgument(f"{name}[{index}] must be an object with an id.", field=f"{name}[{index}]")
    try:
        readable = well_formed_value(data)
    except RecursionError as error:
        raise InvalidArgument("This agent file is nested too deeply.", field="agents") from error
    return _FileReader(readable, namespace).read()


def _why_no_agents(data: object) -> str:
    if isinstance(data, dict) and {"core_memory", "llm_config"} <= data.keys():
        return (
            "This agent file has Letta's legacy format, one agent instead of a list of agents, which Letta 0.16 does "
            "not read either. An older Letta server that reads it can export it in the present format."
        )
    return "This is no agent file of Letta: it has no agents."


@contextmanager
def _place(place: str) -> Iterator[None]:
    """Names the place of a value that cannot be read. Raises InvalidArgument."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidArgument(f"{place} cannot be read: {error}", field=place) from error


class _FileReader:
    def __init__(self, data: Mapping[str, Any], namespace: str) -> None:
        self._namespace = namespace
        self._data = data
        self._rows = {name: {row["id"]: row for row in data.get(name) or ()} for name in _LISTS}
        self._left_out: list[str] = []
        # An agent file dates messages only. Everything else gets the time of the export.
        self._times = {"created_at": data.get("created_at") or datetime.now(UTC)}

    def read(self) -> AgentFile:
        agents = {}
        for index, row in enumerate(self._data["agents"]):
            with _place(f"agents[{index}]"):
                agents[self._id("agent", row["id"])] = list(self._records(row))
        files = []
        for index, row in enumerate(self._data.get("files") or ()):
            with _place(f"files[{index}]"):
                if row.get("content") is not None and not isinstance(row["content"], str):
                    raise TypeError("content must be a text")
                if row.get("content"):
                    folder = self._rows["sources"][row["source_id"]]["name"]
                    files.append(FolderText(folder, resources.file_name(row), row["content"]))
        servers = list(self._data.get("mcp_servers") or ())
        for index, row in enumerate(servers):
            if not isinstance(row.get("server_name"), str):
                place = f"mcp_servers[{index}]"
                raise InvalidArgument(f"{place} has no server_name.", field=place)
        return AgentFile(agents, files, servers, self._left_out)

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
        agent_id = self._id("agent", row["id"])
        secrets = {**(row.get("tool_exec_environment_variables") or {}), **(row.get("secrets") or {})}
        agent = agent_settings(
            {**self._times, **row, "id": agent_id}, tags=row.get("tags") or (), secrets=secrets, identity_ids=()
        )
        agent.default_conversation_id = derive_id("conv", agent_id)
        tools = [self._rows["tools"][id_] for id_ in row.get("tool_ids") or ()]
        custom = [tool for tool in tools if self._attach(agent, tool)]
        yield AgentRecord(agent=agent)
        for tool in custom:
            yield AgentRecord(tool=resources.custom_tool({**self._times, **tool, "id": self._id("tool", tool["id"])}))
        for id_ in row.get("source_ids") or row.get("folder_ids") or ():
            folder = self._rows["sources"].get(id_)
            if folder is None:  # Letta exports a folder without files as its id alone.
                self._left_out.append(f"A folder of {agent.name}: the file has no name of {id_}.")
                continue
            yield AgentRecord(folder=resources.folder({**self._times, **folder, "id": self._id("source", id_)}))
        for id_ in row.get("block_ids") or ():
            yield self._block(self._rows["blocks"][id_], id_)
        for number, block in enumerate(row.get("memory_blocks") or ()):
            yield self._block(block, f"{row['id']}/{number}")
        yield from self._messages(row, agent_id)
        for group in self._groups(row):
            yield AgentRecord(group=group)

    def _attach(self, agent: Any, tool: Row) -> bool:
        """Attaches a tool. Returns whether it is a custom one, which needs a record."""
        kind = tool.get("tool_type") or "custom"
        if resources.is_builtin_tool(tool):
            agent.tools.append(AttachedTool(name=tool["name"], builtin=True))
        elif kind == "custom" and not resources.is_runnable(tool):
            self._left_out.append(f"The tool {tool['name']} of {agent.name}: it has no source code.")
        elif kind == "custom":
            agent.tools.append(AttachedTool(tool_id=self._id("tool", tool["id"]), name=tool["name"]))
            return True
        else:
            self._left_out.append(f"The tool {tool['name']} of {agent.name}: tools of the type {kind} have no code.")
        return False

    def _block(self, row: Row, key: str) -> AgentRecord:
        block = resources.block({**self._times, **row, "id": self._id("block", key)}, tags=row.get("tags") or ())
        if block.label != row["label"]:
            self._left_out.append(f"The label {row['label']!r} of a block is {block.label} here.")
        return AgentRecord(block=BlockRecord(block=block))

    def _messages(self, row: Row, agent_id: str) -> Iterator[AgentRecord]:
        conversation_id = derive_id("conv", agent_id)
        window = [self._message_id(row, id_) for id_ in row.get("in_context_message_ids") or ()]
        yield AgentRecord(
            conversation=Conversation(
                id=conversation_id,
                agent_id=agent_id,
                is_default=True,
                message_ids=window,
                create_time=self._time(),
                update_time=self._time(),
            )
        )
        handle = str((row.get("llm_config") or {}).get("handle") or "unknown/")
        kind = row.get("agent_type") or "memgpt_v2_agent"
        reader = MessageReader(agent_id, handle.split("/", 1)[0], agent_type=kind)
        for message in row.get("messages") or ():
            request = message.get("approval_request_id")
            known = {
                **message,
                "id": self._message_id(row, message["id"]),
                "approval_request_id": request and self._message_id(row, request),
                "group_id": None,
            }
            yield AgentRecord(message=reader.read(known, conversation_id=conversation_id))

    def _message_id(self, row: Row, id_: str) -> str:
        return self._id("message", f"{row['id']}/{id_}")

    def _groups(self, row: Row) -> Iterator[Any]:
        for group in self._rows["groups"].values():
            config = group.get("manager_config") or {}
            manager = config.get("manager_agent_id")
            if row["id"] not in (*group["agent_ids"], manager):
                continue
            fields = {
                **self._times,
                **config,
                "id": self._id("group", group["id"]),
                "description": group.get("description"),
            }
            fields["manager_agent_id"] = manager and self._id("agent", manager)
            yield resources.group(
                fields,
                self._ids("agent", group["agent_ids"]),
                self._ids("block", group.get("shared_block_ids") or ()),
            )

    def _ids(self, prefix: str, ids: Iterable[str]) -> list[str]:
        return [self._id(prefix, id_) for id_ in ids]
