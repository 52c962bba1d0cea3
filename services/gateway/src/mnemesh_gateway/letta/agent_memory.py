"""Memory of an agent: core-memory blocks, archival memory, archives, identities, the context window."""

from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from mnemesh.agents.v1 import agents_pb2
from mnemesh.agents.v1 import agents_service_pb2 as agents_rpc
from mnemesh.agents.v1 import identities_service_pb2 as identities_rpc
from mnemesh.archival.v1 import archives_service_pb2 as archives_rpc
from mnemesh.archival.v1 import passages_service_pb2 as rpc
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.blocks.v1 import blocks_service_pb2 as blocks_rpc
from mnemesh_kit.errors import NotFound
from mnemesh_kit.paging import whole_answer
from mnemesh_letta.convert.values import json_value, moment_of, present, set_present

from mnemesh_gateway.letta.agent_states import AgentState, Memory, read_state
from mnemesh_gateway.letta.archives import CreatePassage, Passage, inserted, passage_from_proto, passage_to_proto
from mnemesh_gateway.letta.blocks import Block, UpdateBlock, block_from_proto, update_to_proto
from mnemesh_gateway.letta.mesh import READ_SECONDS, Mesh, PageQuery, cut, list_page
from mnemesh_gateway.letta.messages import internal_from_proto
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations, read


class ListPassages(msgspec.Struct, kw_only=True):
    """The query of a list of passages."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    search: str | None = None
    ascending: bool | None = None


class SearchPassages(msgspec.Struct, kw_only=True):
    """What to search in an agent's archives."""

    query: str
    tags: list[str] | None = None
    tag_match_mode: Literal["any", "all"] = "any"
    top_k: int | None = None
    start_datetime: datetime | None = None
    end_datetime: datetime | None = None


class PassageResult(msgspec.Struct, kw_only=True):
    """A passage that was found."""

    id: str
    timestamp: str
    content: str
    tags: list[str]


class PassageResults(msgspec.Struct, kw_only=True):
    """The passages that were found, best first."""

    results: list[PassageResult]
    count: int


class RecompileQuery(msgspec.Struct, kw_only=True):
    """Whether the new text is stored."""

    dry_run: bool = False
    update_timestamp: bool = False


class ContextQuery(msgspec.Struct, kw_only=True):
    """The conversation of a context window; the agent's own if it is null or absent."""

    conversation_id: str | None = None


class ContextWindow(msgspec.Struct, kw_only=True):
    """The texts of a context window and their tokens."""

    context_window_size_max: int
    context_window_size_current: int
    num_messages: int
    num_archival_memory: int
    num_recall_memory: int
    num_tokens_external_memory_summary: int
    external_memory_summary: str
    num_tokens_system: int
    system_prompt: str
    num_tokens_core_memory: int
    core_memory: str
    num_tokens_memory_filesystem: int = 0
    memory_filesystem: str | None = None
    num_tokens_tool_usage_rules: int = 0
    tool_usage_rules: str | None = None
    num_tokens_directories: int = 0
    directories: str | None = None
    num_tokens_summary_memory: int = 0
    summary_memory: str | None = None
    num_tokens_functions_definitions: int = 0
    functions_definitions: list[dict[str, Any]] = []
    num_tokens_messages: int = 0
    messages: list[dict[str, Any]] = []


operations = Operations()
_WRITE_SECONDS: Final = 60.0


@operations.get("/agents/{agent_id}/core-memory")
async def retrieve_agent_memory(call: Call[NoQuery, None]) -> Memory:
    """Returns the core memory of an agent."""
    return (await read_state(call.mesh, call.path["agent_id"])).memory


@operations.get("/agents/{agent_id}/core-memory/blocks")
async def list_core_memory_blocks(call: Call[PageQuery, None]) -> list[Block]:
    """Lists the blocks of an agent."""
    blocks = await _blocks(call.mesh, call.path["agent_id"])
    return [block_from_proto(block) for block in cut(blocks, call.query, lambda block: block.id, limit=100)]


@operations.get("/agents/{agent_id}/core-memory/blocks/{block_label}")
async def retrieve_core_memory_block(call: Call[NoQuery, None]) -> Block:
    """Returns a block of an agent by its label."""
    return block_from_proto(await _block(call.mesh, call.path["agent_id"], call.path["block_label"]))


@operations.patch("/agents/{agent_id}/core-memory/blocks/{block_label}")
async def modify_core_memory_block(call: Call[NoQuery, UpdateBlock]) -> Block:
    """Updates a block of an agent, and renders the agent's system message again."""
    agent_id = call.path["agent_id"]
    block = await _block(call.mesh, agent_id, call.path["block_label"])
    request = update_to_proto(call.body, block.id)
    if request.update_mask.paths:
        block = (await call.write(call.mesh.blocks.UpdateBlock, request)).block
    return block_from_proto(block)


@operations.patch("/agents/{agent_id}/core-memory/blocks/attach/{block_id}")
async def attach_core_memory_block(call: Call[NoQuery, None]) -> AgentState:
    """Attaches a block to an agent."""
    agent_id = await _require_agent(call)
    request = blocks_rpc.AttachBlockRequest(agent_id=agent_id, block_id=call.path["block_id"])
    await call.write(call.mesh.blocks.AttachBlock, request)
    return await read_state(call.mesh, agent_id)


@operations.patch("/agents/{agent_id}/core-memory/blocks/detach/{block_id}")
async def detach_core_memory_block(call: Call[NoQuery, None]) -> AgentState:
    """Detaches a block from an agent. The block stays."""
    agent_id = await _require_agent(call)
    request = blocks_rpc.DetachBlockRequest(agent_id=agent_id, block_id=call.path["block_id"])
    await call.write(call.mesh.blocks.DetachBlock, request)
    return await read_state(call.mesh, agent_id)


@operations.post("/agents/{agent_id}/archival-memory")
async def create_passage(call: Call[NoQuery, CreatePassage]) -> list[Passage]:
    """Inserts a passage into the archive of an agent, which is created with the first one."""
    agent_id = call.path["agent_id"]
    agent = (await read(call.mesh.agents.GetAgent, agents_rpc.GetAgentRequest(agent_id=agent_id))).agent
    request = rpc.InsertPassagesRequest(
        agent_id=agent_id,
        passages=[passage_to_proto(call.body)],
        default_embedder=agent.embedder,
    )
    response = await call.write(call.mesh.passages.InsertPassages, request)
    return inserted(response)


@operations.get("/agents/{agent_id}/archival-memory")
async def list_passages(call: Call[ListPassages, None]) -> list[Passage]:
    """Lists the passages in the archives of an agent, oldest first."""
    agent_id, query = await _require_agent(call), call.query
    order = PageQuery(
        before=query.before,
        after=query.after,
        limit=query.limit,
        order="desc" if query.ascending is False else "asc",
    )
    request = rpc.ListPassagesRequest(filter=rpc.PassageFilter(agent_id=agent_id))
    set_present(request, text_contains=query.search)
    rows = await list_page(call.mesh.passages.ListPassages, request, "passages", order, default="asc", limit=100)
    return [passage_from_proto(row) for row in rows]


@operations.get("/agents/{agent_id}/archival-memory/search")
async def search_archival_memory(call: Call[SearchPassages, None]) -> PassageResults:
    """Searches the archives of an agent, best first."""
    agent_id, query = await _require_agent(call), call.query
    match = rpc.TAG_MATCH_ALL if query.tag_match_mode == "all" else rpc.TAG_MATCH_ANY
    filters = rpc.PassageFilter(agent_id=agent_id, tags=query.tags or (), tag_match=match)
    set_present(
        filters,
        start_date=query.start_datetime.isoformat() if query.start_datetime else None,
        end_date=query.end_datetime.isoformat() if query.end_datetime else None,
    )
    request = rpc.SearchPassagesRequest(query=query.query, limit=query.top_k or 10, filter=filters)
    hits = (await whole_answer(call.mesh.passages.SearchPassages, request, seconds=_WRITE_SECONDS)).hits
    results = [
        PassageResult(
            id=hit.passage.id,
            timestamp=(created.isoformat() if (created := moment_of(hit.passage, "create_time")) else ""),
            content=hit.passage.text,
            tags=list(hit.passage.tags),
        )
        for hit in hits
    ]
    return PassageResults(results=results, count=len(results))


@operations.delete("/agents/{agent_id}/archival-memory/{memory_id}")
async def delete_passage(call: Call[NoQuery, None]) -> dict[str, str]:
    """Deletes a passage."""
    passage_id = call.path["memory_id"]
    agent_id = await _require_agent(call)
    passage = (await read(call.mesh.passages.GetPassage, rpc.GetPassageRequest(passage_id=passage_id))).passage
    held = archives_rpc.ListArchivesRequest(
        page_size=1, filter=archives_rpc.ArchiveFilter(agent_id=agent_id, archive_ids=[passage.archive_id])
    )
    if not passage.archive_id or not (await read(call.mesh.archives.ListArchives, held)).archives:
        raise NotFound(f"{agent_id} has no passage {passage_id}.")
    await call.write(call.mesh.passages.DeletePassage, rpc.DeletePassageRequest(passage_id=passage_id))
    return {"message": f"Passage {passage_id} was deleted."}


@operations.patch("/agents/{agent_id}/archives/attach/{archive_id}")
async def attach_archive_to_agent(call: Call[NoQuery, None]) -> None:
    """Attaches an archive to an agent."""
    request = archives_rpc.AttachArchiveRequest(agent_id=await _require_agent(call), archive_id=call.path["archive_id"])
    await call.write(call.mesh.archives.AttachArchive, request)


@operations.patch("/agents/{agent_id}/archives/detach/{archive_id}")
async def detach_archive_from_agent(call: Call[NoQuery, None]) -> None:
    """Detaches an archive from an agent."""
    request = archives_rpc.DetachArchiveRequest(agent_id=await _require_agent(call), archive_id=call.path["archive_id"])
    await call.write(call.mesh.archives.DetachArchive, request)


@operations.patch("/agents/{agent_id}/identities/attach/{identity_id}")
async def attach_identity_to_agent(call: Call[NoQuery, None]) -> None:
    """Attaches an identity to an agent."""
    request = identities_rpc.AttachIdentityRequest(agent_id=call.path["agent_id"], identity_id=call.path["identity_id"])
    await call.write(call.mesh.identities.AttachIdentity, request)


@operations.patch("/agents/{agent_id}/identities/detach/{identity_id}")
async def detach_identity_from_agent(call: Call[NoQuery, None]) -> None:
    """Detaches an identity from an agent."""
    request = identities_rpc.DetachIdentityRequest(agent_id=call.path["agent_id"], identity_id=call.path["identity_id"])
    await call.write(call.mesh.identities.DetachIdentity, request)


@operations.post("/agents/{agent_id}/recompile")
@operations.post("/agents/{agent_id}/system-prompt/recompile")
async def recompile_agent(call: Call[RecompileQuery, None]) -> str:
    """Renders the system message of an agent again and returns its text."""
    request = agents_rpc.RecompileAgentRequest(agent_id=call.path["agent_id"], dry_run=call.query.dry_run)
    return str((await call.write(call.mesh.agents.RecompileAgent, request)).system_text)


@operations.get("/agents/{agent_id}/context")
async def retrieve_agent_context_window(call: Call[ContextQuery, None]) -> ContextWindow:
    """Returns what the model of an agent sees in a conversation, with the tokens of each part."""
    request = agents_rpc.GetContextWindowRequest(agent_id=call.path["agent_id"])
    set_present(request, conversation_id=call.query.conversation_id)
    window = (await call.mesh.agents.GetContextWindow(request, timeout=_WRITE_SECONDS)).context_window
    sections = {section.kind: section for section in window.sections}

    def tokens(name: str) -> int:
        section = sections.get(agents_pb2.ContextSectionKind.Value(f"CONTEXT_SECTION_KIND_{name}"))
        return section.tokens if section is not None else 0

    def text(name: str) -> str | None:
        section = sections.get(agents_pb2.ContextSectionKind.Value(f"CONTEXT_SECTION_KIND_{name}"))
        return present(section, "text") if section is not None else None

    functions: list[dict[str, Any]] = [json_value(schema) for schema in window.tool_schemas]
    return ContextWindow(
        context_window_size_max=window.context_window_size,
        context_window_size_current=window.total_tokens,
        num_messages=len(window.messages),
        num_archival_memory=window.archival_passage_count,
        num_recall_memory=window.recall_message_count,
        num_tokens_external_memory_summary=tokens("MEMORY_METADATA"),
        external_memory_summary=text("MEMORY_METADATA") or "",
        num_tokens_system=tokens("SYSTEM_PROMPT"),
        system_prompt=text("SYSTEM_PROMPT") or "",
        num_tokens_core_memory=tokens("CORE_MEMORY"),
        core_memory=text("CORE_MEMORY") or "",
        num_tokens_tool_usage_rules=tokens("TOOL_RULES"),
        tool_usage_rules=text("TOOL_RULES"),
        num_tokens_directories=tokens("DIRECTORIES"),
        directories=text("DIRECTORIES"),
        num_tokens_summary_memory=tokens("SUMMARY"),
        summary_memory=text("SUMMARY"),
        num_tokens_functions_definitions=tokens("TOOL_SCHEMAS"),
        functions_definitions=functions,
        num_tokens_messages=tokens("MESSAGES"),
        messages=[internal_from_proto(message) for message in window.messages],
    )


async def _require_agent(call: Call[Any, Any]) -> str:
    """Returns the id of the path's agent. Raises NotFound if there is none: the tiers of memory do not know agents."""
    agent_id = call.path["agent_id"]
    await call.mesh.agents.GetAgent(agents_rpc.GetAgentRequest(agent_id=agent_id), timeout=READ_SECONDS)
    return agent_id


async def _blocks(mesh: Mesh, agent_id: str) -> list[blocks_pb2.Block]:
    request = agents_rpc.GetAgentRequest(agent_id=agent_id, view=agents_rpc.AgentView(blocks=True))
    return list((await read(mesh.agents.GetAgent, request)).core_memory.blocks)


async def _block(mesh: Mesh, agent_id: str, label: str) -> blocks_pb2.Block:
    for block in await _blocks(mesh, agent_id):
        if block.label == label:
            return block
    raise NotFound(f"{agent_id} has no block with the label {label[:100]!r}.")
