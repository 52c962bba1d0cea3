"""The import of an agent's files: into a new agent, or into an existing one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mnemesh.agents.v1 import agents_pb2, agents_service_pb2
from mnemesh.blocks.v1 import blocks_pb2, blocks_service_pb2
from mnemesh.tools.v1 import tools_pb2, tools_service_pb2
from mnemesh_cli.agent_exports.archives import restore_passages
from mnemesh_cli.agent_exports.conversations import ConversationImport
from mnemesh_cli.agent_exports.files import BLOCKS, NAMES, SETTINGS, TOOLS, from_line, read
from mnemesh_cli.trace_files.directory import TraceDirectory
from mnemesh_client.agent import Agent
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import derive_id

if TYPE_CHECKING:
    from mnemesh_client.mnemesh import Mnemesh

_CREATION_SECONDS: Final = 60.0
_TAG: Final = "imported-from:"
_SLEEPTIME: Final = "enable_sleeptime"
_OUTPUT_ONLY: Final = (
    "id", "state", "effective_model_settings", "effective_max_files_open",
    "effective_per_file_view_window_char_limit", "identity_ids", "group_ids", "message_ids", "tools",
    "default_conversation_id", "last_stop_reason", "last_run_completion_time", "last_run_duration", "secrets",
    "pending_approval_request_id", "created_for_agent_id", "create_time", "update_time", "provenance",
)  # fmt: skip
_OF_BLOCK: Final = (
    "id",
    "revision",
    "identity_ids",
    "created_for_agent_id",
    "create_time",
    "update_time",
    "provenance",
)
_OF_TOOL: Final = ("id", "create_time", "update_time", "provenance", "revision", "packages", "secrets")


@dataclass(slots=True)
class ImportCounts:
    """The number of imported items. Items that existed are not counted, except for `skipped`, which counts records."""

    traces: int = 0
    turns: int = 0
    episodes: int = 0
    facts: int = 0
    skipped: int = 0
    blocks: int = 0
    tools: int = 0
    conversations: int = 0
    archives: int = 0
    passages: int = 0
    is_new: bool = False
    notes: list[str] = field(default_factory=list)
    """The parts that were not imported, with the reasons."""


class AgentImport:
    """The import of one directory. A repeated import changes nothing."""

    def __init__(self, mnemesh: Mnemesh, directory: Path) -> None:
        """Reads the files.

        Raises:
            InvalidArgument: a line is malformed.
        """
        self._mnemesh = mnemesh
        self._directory = directory
        lines = {name: read(directory, name) for name in NAMES}
        settings = lines[SETTINGS]
        self._blocks = [from_line(line, blocks_pb2.Block(), BLOCKS) for line in lines[BLOCKS]]
        self._tools = [from_line(line, tools_pb2.Tool(), TOOLS) for line in lines[TOOLS]]
        self._records = list(TraceDirectory(directory).records())
        self._settings = from_line(settings[0].get("agent", {}), agents_pb2.Agent(), SETTINGS) if settings else None
        self.counts = ImportCounts()

    async def run(self, key: str | None, *, model: str | None = None, window: bool = True) -> Agent:
        """Imports the directory, and returns the agent.

        Args:
            key: the id or name of the agent to import into; None is the agent that the directory names. If there is no
                such agent, it is created with the exported settings.
            model: the model of a new agent; None is the exported one.
            window: whether traces that are not archived are added to context windows.

        Raises:
            NotFound: there is no such agent, and the directory has no settings to create it with.
            ModelUnknown: no provider serves the model.
        """
        agent = await self._agent(key, model)
        await self._restore_blocks(agent)
        conversations = ConversationImport(self._mnemesh, agent, self._directory, self._settings)
        self.counts.conversations = await conversations.create_missing(self._records, is_new=self.counts.is_new)
        records = conversations.mapped(self._records)
        result = await self._mnemesh.traces.import_(agent.id, records, extend_window=window)
        self.counts.traces, self.counts.turns = result.imported_traces, result.created_turns
        self.counts.episodes, self.counts.facts = result.imported_episodes, result.imported_facts
        self.counts.skipped = result.skipped_records
        self.counts.archives, self.counts.passages, refused = await restore_passages(
            self._mnemesh, agent, self._directory
        )
        self.counts.notes += refused
        await self._restore_partner(agent)
        return agent

    async def _agent(self, key: str | None, model: str | None) -> Agent:
        if key is not None:
            return await self._mnemesh.agents.find(key)
        former_id = self._directory.name
        try:
            return await self._mnemesh.agents.find(former_id)
        except NotFound:
            if self._settings is None:
                raise
        tag = f"{_TAG}{former_id}"
        async for agent in self._mnemesh.agents.list(tags_all=[tag], limit=1):
            return agent
        return await self._create(tag, former_id, model)

    async def _create(self, tag: str, former_id: str, model: str | None) -> Agent:
        settings = agents_pb2.Agent()
        settings.CopyFrom(self._settings or settings)
        attached, secrets = list(settings.tools), [secret.key for secret in settings.secrets]
        for name in (*_OUTPUT_ONLY, _SLEEPTIME):
            settings.ClearField(name)
        settings.tags.append(tag)
        settings.model = model or settings.model
        await self._restore_tools()
        request = agents_service_pb2.CreateAgentRequest(
            request_id=derive_id("request", "import", former_id),
            agent=settings,
            blocks=[_without(block, _OF_BLOCK) for block in self._blocks],
            tool_names=[tool.name for tool in attached],
            include_base_tools=False,
            include_base_tool_rules=False,
            initial_messages=agents_service_pb2.InitialMessages(),
        )
        response = await self._mnemesh.agents.stub.CreateAgent(request, timeout=_CREATION_SECONDS)
        agent = Agent(self._mnemesh, response.agent)
        for tool in attached:
            if tool.HasField("requires_approval"):
                await agent.set_tool_approval(tool.name, required=tool.requires_approval)
        self.counts.is_new, self.counts.blocks = True, len(request.blocks)
        if secrets:
            self.counts.notes.append(f"Set the secrets of the agent again: {', '.join(secrets)}.")
        return agent

    async def _restore_partner(self, agent: Agent) -> None:
        """Gives an imported agent a partner, if the exported one had one.

        The partner comes last, so that it shares the imported archives, and no transcript has the imported messages:
        what the former partner wrote about them is in the blocks.
        """
        is_imported = any(tag.startswith(_TAG) for tag in agent.proto.tags)
        wanted = self._settings is not None and self._settings.enable_sleeptime
        if wanted and is_imported and not agent.proto.HasField(_SLEEPTIME):
            await agent.update(enable_sleeptime=True)

    async def _restore_tools(self) -> None:
        """Creates the custom tools whose names are free. A tool with the name and another source is kept."""
        for tool in self._tools:
            try:
                existing = await self._mnemesh.tools.get(tool.name)
            except NotFound:
                request = tools_service_pb2.CreateToolRequest(tool=_without(tool, _OF_TOOL))
                await self._mnemesh.tools.stub.CreateTool(request)
                self.counts.tools += 1
                if tool.secrets:
                    names = ", ".join(secret.name for secret in tool.secrets)
                    self.counts.notes.append(f"Set the secrets of the tool {tool.name} again: {names}.")
                continue
            if existing.source_code != tool.source_code:
                self.counts.notes.append(f"The tool {tool.name} exists with another source. It was kept.")

    async def _restore_blocks(self, agent: Agent) -> None:
        """Creates the blocks whose labels the agent does not have. Other blocks are kept."""
        existing = {block.label: block for block in (await agent.memory()).blocks} if self._blocks else {}
        for block in self._blocks:
            own = existing.get(block.label)
            if own is None:
                request = blocks_service_pb2.CreateBlockRequest(
                    request_id=derive_id("request", agent.id, block.id), block=_without(block, _OF_BLOCK),
                    agent_ids=[agent.id],
                )  # fmt: skip
                await self._mnemesh.blocks.stub.CreateBlock(request)
                self.counts.blocks += 1
            elif own.value != block.value and not self.counts.is_new:
                self.counts.notes.append(f"The block {block.label} of the agent has another text. It was kept.")


def _without(message: Any, names: Iterable[str]) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    for name in names:
        copy.ClearField(name)
    return copy
