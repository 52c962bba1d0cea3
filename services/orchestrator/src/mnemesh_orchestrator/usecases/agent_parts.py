"""The parts of an agent in the other services: its tools, blocks, archives and window; their change and deletion."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import MnemeshError, NotFound, RequestIdReused
from mnemesh_kit.secret_variables import SecretVariables, require_valid_variables
from mnemesh_kit.time import Clock
from mnemesh_types.archival import ArchivalSummary
from mnemesh_types.blocks import Block
from mnemesh_types.messages import Message

from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS
from mnemesh_orchestrator.clients.services import Services
from mnemesh_orchestrator.compaction.planner import mode_of
from mnemesh_orchestrator.errors import AgentRevisionMismatch
from mnemesh_orchestrator.llm.embedders import EmbedderDirectory
from mnemesh_orchestrator.llm.model_catalog import (
    ModelCatalog,
    OrganizationModels,
    require_served,
    require_usable_settings,
    require_usable_summaries,
)
from mnemesh_orchestrator.loop.request_assembly import RequestAssembler
from mnemesh_orchestrator.loop.rules import RulesSolver
from mnemesh_orchestrator.loop.services import ContextReader
from mnemesh_orchestrator.model.agents import (
    AGENT_TYPES,
    MULTI_AGENT_TOOLS,
    Agent,
    AttachedTool,
    base_rules,
    base_rules_by_default,
    base_tool_names,
    require_continuation,
    require_name,
    require_prompt_key,
    shows_line_numbers,
    valid_agent_fields,
)
from mnemesh_orchestrator.model.core_memory import CoreMemory
from mnemesh_orchestrator.model.creation import PERSONA_LABEL, AgentDraft, Deletion, Erased, ErasureScope, Partnership
from mnemesh_orchestrator.model.groups import GroupState
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.rules import ContinueLoop, CustomTool
from mnemesh_orchestrator.prompt.assembly import Prompts, memory_section
from mnemesh_orchestrator.prompt.personas import PERSONA_DESCRIPTION, partner_persona
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.usecases.context_windows import ContextWindowRenderer, FirstMessageFactory
from mnemesh_orchestrator.usecases.groups import GroupChanges
from mnemesh_orchestrator.usecases.sagas import UNAVAILABLE

MESSAGE_SEARCH: Final = "conversation_search"
EPISODIC_SEARCH: Final = "episodic_memory_search"
EPISODIC_TOOLS: Final = (EPISODIC_SEARCH, "episodic_memory_correct", "episodic_memory_forget")
FILE_TOOLS: Final = ("open_files", "grep_files", "semantic_search_files")

_SECRETS: Final = "agent.secrets"


def attached_tool(tool: CustomTool) -> AttachedTool:
    """Returns a stored tool as a tool of an agent. A built-in tool is attached by its name only.

    Raises:
        NotFound: This server does not have the built-in tool.
    """
    if not tool.builtin:
        return AttachedTool(tool.name, tool.id)
    if tool.name not in BUILTIN_SCHEMAS:
        raise NotFound(f"This server has no built-in tool {tool.name}.", resource_id=tool.id)
    return AttachedTool(tool.name)


def keeps_memories(settings: Agent) -> bool:
    """Returns whether an agent learns facts: by compactions, or by extraction after turns or on demand."""
    return mode_of(settings.compaction_settings).summarizer == "episodic" or settings.memory_extraction is not None


def base_tools(names: tuple[str, ...], settings: Agent) -> tuple[str, ...]:
    """Returns the base tools of a new agent: `names`, and the search of facts and episodes if it searches messages and
    keeps memories; with the tools that correct facts if it extracts them without a compaction.
    """
    if not keeps_memories(settings) or MESSAGE_SEARCH not in names:
        return names
    index = names.index(MESSAGE_SEARCH) + 1
    own = EPISODIC_TOOLS if settings.memory_extraction is not None else (EPISODIC_SEARCH,)
    return (*names[:index], *(name for name in own if name not in names), *names[index:])


def with_folders(agent: Agent, revision: int, *, holds_folders: bool) -> Agent:
    """Returns an agent that holds folders, or none any more, as of a revision of its directories.

    The first folder attaches the tools of files, and the last one detaches them. Tools of their names that users wrote
    stay. An earlier revision than the known one changes nothing.
    """
    if revision <= agent.folders_revision:
        return agent
    tools, rules = agent.tools, agent.tool_rules
    if holds_folders and not agent.holds_folders:
        added = tuple(name for name in FILE_TOOLS if agent.tool(name) is None)
        tools = (*tools, *map(AttachedTool, added))
        if any(isinstance(rule, ContinueLoop) for rule in rules):
            rules = (*rules, *(ContinueLoop(name) for name in added if ContinueLoop(name) not in rules))
    elif agent.holds_folders and not holds_folders:
        tools = tuple(tool for tool in tools if tool.name not in FILE_TOOLS or tool.tool_id is not None)
        gone = {tool.name for tool in agent.tools} - {tool.name for tool in tools}
        rules = tuple(rule for rule in rules if not (isinstance(rule, ContinueLoop) and rule.tool_name in gone))
    return replace(agent, tools=tools, tool_rules=rules, holds_folders=holds_folders, folders_revision=revision)


def with_episodic_search(agent: Agent) -> Agent:
    """Returns an agent that keeps memories now, with the tools of facts and episodes and their rules."""
    names = tuple(tool.name for tool in agent.tools)
    wanted = base_tools(names, agent)
    added = tuple(name for name in wanted if name not in names)
    if not added:
        return agent
    by_name = {tool.name: tool for tool in agent.tools}
    rules = agent.tool_rules
    if ContinueLoop(MESSAGE_SEARCH) in rules:
        rules = (*rules, *map(ContinueLoop, added))
    return replace(agent, tools=tuple(by_name.get(name) or AttachedTool(name) for name in wanted), tool_rules=rules)


@dataclass(frozen=True, eq=False)
class AgentParts:
    """Creates and erases the parts of agents.

    The request ids of the effects are derived from the agent, so that an interrupted work can be repeated.
    """

    services: Services
    models: ModelCatalog
    context: ContextReader
    requests: RequestAssembler
    renderer: ContextWindowRenderer

    async def create(self, agent: Agent, draft: AgentDraft) -> Agent:
        """Creates the parts that a draft asks for, and returns the agent with its tools and rules.

        Raises:
            InvalidArgument: The system message and the tools do not fit into the context window.
        """
        agent = await self._with_tools(agent, draft)
        core: CoreMemory | None = None
        if draft.blocks or draft.block_ids:
            core = await self.services.core_memory.create_core_memory(
                f"{agent.id}/blocks", agent.id, draft.blocks, draft.block_ids
            )
            self.context.remember_memory(core)
        for archive_id in draft.archive_ids:
            with _as_field("archive_ids"):
                await self.services.archival.attach(f"{agent.id}/attach/{archive_id}", agent.id, archive_id)
        agent = await self._with_folders(agent, draft)
        text = await self.system_text(agent, core)
        await self.renderer.require_space(agent, text)
        await self._create_window(agent, draft.initial_messages, text)
        return agent

    async def _with_folders(self, agent: Agent, draft: AgentDraft) -> Agent:
        files, folder_ids = self.services.files, draft.folder_ids
        if draft.include_default_folder:
            name = f"{agent.name.replace('/', '-')[:200]} files {agent.id[-6:]}"
            own = await files.create_folder(f"{agent.id}/folder", name, agent.embedder)
            folder_ids = (own, *folder_ids)
        for folder_id in folder_ids:
            key, opens_files = f"{agent.id}/attach/{folder_id}", draft.opens_folder_files
            with _as_field("folder_ids"):
                revision = await files.attach(key, agent.id, folder_id, opens_files=opens_files)
            agent = with_folders(agent, revision, holds_folders=True)
        return agent

    async def create_partner(self, agent_id: str, partnership: Partnership) -> None:
        """Creates the parts of a partner: a block of its own, the blocks and archives of its agent, and a window.

        An agent without an archive gets one. If the agent has a block under the label of the partner's own block, the
        partner gets none of its own.

        Raises:
            BLOCK_LABEL_TAKEN, FAILED_PRECONDITION: The agents cannot share their blocks.
        """
        partner, group = partnership.partner, partnership.group
        memory, archival = self.services.core_memory, self.services.archival
        if (await self.context.core_memory(agent_id)).block(PERSONA_LABEL) is None:
            own = Block(label=PERSONA_LABEL, value=partner_persona(partner.type), description=PERSONA_DESCRIPTION)
            await memory.create(f"{partner.id}/block/{PERSONA_LABEL}", partner.id, own)
        await memory.link(f"{partner.id}/link", group.id, (agent_id, partner.id), agent_id)
        archive_ids = await archival.archives_of(agent_id)
        if not archive_ids:
            await archival.create(f"{partner.id}/archive", agent_id, partner.embedder)
            # An agent that is in use may have stored its first passage meanwhile, in another archive.
            archive_ids = await archival.archives_of(agent_id)
        for archive_id in archive_ids:
            await archival.attach(f"{partner.id}/attach/{archive_id}", partner.id, archive_id)
        await self._create_window(partner, None, await self.system_text(partner))

    async def newest_sequence_id(self, agent_id: str) -> int:
        """Returns the sequence id of the newest message of an agent; 0 if it has none. Raises Unavailable."""
        return await self.services.recall.newest_sequence_id(agent_id)

    async def _create_window(self, agent: Agent, initial: Sequence[InputMessage] | None, system_text: str) -> None:
        first = FirstMessageFactory(agent, agent.default_conversation_id, "0", agent.created_at)
        rest: Sequence[Message] = first.default() if initial is None else first.from_inputs(initial)
        messages = [first.system(system_text), *rest]
        # An earlier attempt that succeeded may have rendered other memory, because blocks are shared.
        with suppress(RequestIdReused):
            await self.services.recall.create_context(
                f"{agent.id}/context", agent.id, agent.default_conversation_id, messages
            )

    async def system_text(self, agent: Agent, core: CoreMemory | None = None) -> str:
        """Returns the system message of a window without other messages. Without `core`, core memory is read."""
        info, _ = await self.models.resolve(agent.organization_id, agent.model)
        core = core or await self.context.core_memory(agent.id)
        size = agent.model_settings.context_window or info.context_window
        memory = memory_section(
            core,
            RulesSolver(agent.tool_rules).prompt(),
            (await self.context.directories(agent, size))[0] or "",
            numbered=shows_line_numbers(agent.type, info.provider),
            show_blocks=AGENT_TYPES[agent.type].shows_blocks,
        )
        return self.requests.render_system(
            agent, agent.default_conversation_id, agent.system, memory, core, None, ArchivalSummary()
        )

    async def _with_tools(self, agent: Agent, draft: AgentDraft) -> Agent:
        own_names = base_tool_names(agent.type, has_partner=bool(draft.enable_sleeptime))
        base = base_tools(own_names, draft) if draft.include_base_tools else ()
        to_agents = MULTI_AGENT_TOOLS if draft.include_multi_agent_tools else ()
        names = dict.fromkeys((*base, *to_agents, *draft.tool_names))
        stored = [
            await self.services.tools.upsert_source(f"{agent.id}/source/{index}", source)
            for index, source in enumerate(draft.tool_sources)
        ]
        stored += await self._read_tools(draft.tool_ids, tuple(name for name in names if name not in BUILTIN_SCHEMAS))
        custom = {tool.name: attached_tool(tool) for tool in stored}
        attached = {name: custom.get(name) or AttachedTool(name) for name in (*names, *custom)}
        wants_rules = draft.include_base_tool_rules
        if wants_rules is None:
            wants_rules = base_rules_by_default(agent.type, agent.model)
        own = tuple(rule for rule in AGENT_TYPES[agent.type].rules if rule.tool_name in attached)
        rules = (*draft.tool_rules, *((*own, *base_rules(attached)) if wants_rules else ()))
        return replace(agent, tools=tuple(attached.values()), tool_rules=tuple(dict.fromkeys(rules)))

    async def _read_tools(self, ids: tuple[str, ...], names: tuple[str, ...]) -> list[CustomTool]:
        if not ids and not names:
            return []
        tools = await self.services.tools.definitions(ids, names)
        known = {tool.id for tool in tools} | {tool.name for tool in tools}
        for wanted in (*ids, *names):
            if wanted not in known:
                raise NotFound(f"There is no tool {wanted}.", field="tools", resource_id=wanted)
        return list(tools)

    async def erase(self, agent_id: str, deletion: Deletion) -> Erased:
        """Erases the parts of an agent in the services. Returns the counts."""
        services, scope = self.services, deletion.scope
        others = deletion.together_with
        request_id = f"{agent_id}/erase/{int(scope.unshared_blocks)}{int(scope.unshared_archives)}"
        if others:
            request_id += "/together"
        erased = await services.core_memory.erase_agent(
            request_id, agent_id, unshared=scope.unshared_blocks, together_with=others
        )
        erased += await services.recall.erase_agent(f"{agent_id}/erase", agent_id)
        await services.files.erase_agent(f"{agent_id}/erase", agent_id)
        return erased + await services.archival.erase_agent(
            request_id, agent_id, unshared=scope.unshared_archives, together_with=others
        )


@contextmanager
def _as_field(field: str) -> Iterator[None]:
    """Names the field of the draft in refusals by a service."""
    try:
        yield
    except UNAVAILABLE:
        raise
    except MnemeshError as error:
        error.metadata["field"] = field
        raise


@dataclass(frozen=True, eq=False)
class AgentChanges:
    """Prepares changes of agents as functions of the record, which a store applies within a transaction."""

    models: ModelCatalog
    embedders: EmbedderDirectory
    prompts: Prompts
    secrets: SecretVariables
    clock: Clock

    async def values(
        self, agent_id: str, changes: Mapping[str, Any], system_prompt_key: str | None = None
    ) -> dict[str, Any]:
        """Returns the valid new values of an update by the field names of `Agent`. None has a secret in clear.

        Args:
            changes: The new values. The value of `provenance` is a mapping of those of its fields that change; that of
                `secrets` has all values by name, and None to keep one.
            system_prompt_key: The key of the system prompt that becomes the agent's `system`.

        Raises:
            EmbedderUnknown: No service is configured for the embedder.
            SecretsKeyMissing: This server has no key to store secrets with.
        """
        if "name" in changes:
            require_name(changes["name"])
        values = valid_agent_fields(changes)
        if "secrets" in values:
            require_valid_variables(values["secrets"], _SECRETS)
            values["secrets"] = self.secrets.sealed(agent_id, values["secrets"])
        await self.embedders.require(values.get("embedder"))
        if system_prompt_key is not None:
            values["system"] = self.prompts.get(require_prompt_key(system_prompt_key, "system_prompt_key")).text
        return values

    async def of_values(
        self, caller: Principal, agent_id: str, values: Mapping[str, Any], if_revision: int | None = None
    ) -> Callable[[Agent], Agent]:
        """Returns the change that writes the values, which come from `values`.

        Args:
            caller: The author.
            if_revision: The revision that the agent must have; None changes any. Otherwise the change raises
                AgentRevisionMismatch.
        """
        fields = {name: value for name, value in values.items() if name not in ("provenance", "secrets")}
        provenance, secrets = values.get("provenance", {}), values.get("secrets")

        def change(agent: Agent) -> Agent:
            if if_revision is not None and agent.revision != if_revision:
                raise AgentRevisionMismatch(agent_id, agent.revision)
            if secrets is not None:
                fields["secrets"] = self.secrets.merged(agent.id, agent.secrets, secrets, _SECRETS)
            return replace(agent, provenance=replace(agent.provenance, **provenance), **fields)

        return await self.complete(caller, change)

    async def complete(self, caller: Principal, change: Callable[[Agent], Agent]) -> Callable[[Agent], Agent]:
        """Returns a change with what follows from it. It raises ModelUnknown, and InvalidArgument."""
        models = await self.models.of(caller.organization_id)

        def apply(agent: Agent) -> Agent:
            changed = _complete_change(models, agent, change(agent))
            return replace(
                changed,
                provenance=replace(changed.provenance, last_updated_by_id=caller.subject_id),
                updated_at=self.clock.now(),
            )

        return apply


def _complete_change(models: OrganizationModels, before: Agent, changed: Agent) -> Agent:
    spec = AGENT_TYPES[changed.type]
    model = require_served(models, changed.model, "agent.model")
    if changed.model_settings != before.model_settings:
        require_usable_settings(models, model, changed.model_settings, "agent.model_settings")
    if changed.compaction_settings != before.compaction_settings:
        require_usable_summaries(models, changed.compaction_settings, "agent.compaction_settings")
    if changed.memory_extraction != before.memory_extraction:
        require_usable_summaries(models, changed.memory_extraction, "agent.memory_extraction")
    began_extraction = changed.memory_extraction is not None and before.memory_extraction is None
    if began_extraction or (keeps_memories(changed) and not keeps_memories(before)):
        changed = with_episodic_search(changed)
    require_continuation(changed.type, changed.continuation_message)
    return replace(changed, message_buffer_autoclear=changed.message_buffer_autoclear or spec.forces_autoclear)


@dataclass(frozen=True, eq=False)
class AgentDeletion:
    """Deletes agents. Each deletion survives a crash and the outage of a service."""

    store: AgentStore
    parts: AgentParts
    groups: GroupChanges
    worker: RunWorker

    async def delete(self, caller: Principal, agent_id: str, scope: ErasureScope) -> Erased:
        """Deletes an agent and its partners. Returns the counts. See AgentLifecycle.delete."""
        start, erased = await self.store.begin_deletion(caller.organization_id, agent_id, scope), Erased()
        for each, deletion in start.agents:
            erased += await self.finish(caller.organization_id, each, deletion) + Erased(agents=1)
        # The runs of the deleted agents are gone, so that only those of the other members are cancelled.
        for group_id in start.group_ids:
            async with self.groups.lock_of(caller.organization_id, group_id):
                await self.groups.finish_pending(caller.organization_id, group_id, states=(GroupState.DELETING,))
        return erased

    async def finish(self, organization_id: str, agent_id: str, deletion: Deletion) -> Erased:
        """Erases the parts of a DELETING agent, and removes it. Returns the counts. Raises Unavailable."""
        unfinished = await self.worker.stop_runs_of(organization_id, agent_id)
        try:
            erased = Erased()
            if deletion.partner_id is not None:
                erased += await self.parts.erase(deletion.partner_id, Deletion(together_with=(agent_id,)))
                deletion = replace(deletion, together_with=(deletion.partner_id,))
            erased += await self.parts.erase(agent_id, deletion)
            await self.store.remove(agent_id)
        finally:
            # Clients may have reopened these streams after the runs were stopped.
            self.worker.end_streams(unfinished)
        return erased
