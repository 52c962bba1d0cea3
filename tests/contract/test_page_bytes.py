"""Lists and searches are bounded by bytes: each page ends in time; its token continues without gap or repetition."""

from typing import Any

import pytest
from google.protobuf.descriptor import MethodDescriptor
from mnemesh.agents.v1 import agents_service_pb2, budgets_pb2, conversations_pb2
from mnemesh.recall.v1 import episodes_pb2, messages_service_pb2
from mnemesh.types.v1 import message_pb2, paging_pb2
from mnemesh_kit import paging
from mnemesh_kit.errors import PageTokenInvalid
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fakes.mcp_server import ECHO, running
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.fuzzing.contract import new_request, service_of
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.stubs import PROTO_SERVICES

from .conftest import ended_batch
from .pages import LARGE, OVERHEAD, ROWS, pages_of, rows_of, service_name, size_of

LISTS = [
    method
    for service in PROTO_SERVICES
    for method in service_of(service).methods
    if method.name.startswith("List") and "page_token" in method.input_type.fields_by_name
]
SEARCHES = [
    method
    for service in PROTO_SERVICES
    for method in service_of(service).methods
    if method.name.startswith("Search") and method.name != "SearchWeb"
]
QUERIES = {
    "SearchEpisodes": "episode",
    "SearchFacts": "deep sea",
    "SearchFiles": "text",
    "SearchMessages": "hello",
    "SearchPassages": "passage",
    "SearchTools": "tool answers",
}
TEXT = messages_service_pb2.SEARCH_MODE_TEXT
ORDERS = (paging_pb2.SORT_ORDER_ASCENDING, paging_pb2.SORT_ORDER_DESCENDING)


def method_of(name: str) -> MethodDescriptor:
    """Returns a method of the MessageService."""
    return service_of("mnemesh.recall.v1.MessageService").methods_by_name[name]


def listing(method: MethodDescriptor, ids: dict[str, str], order: int = paging_pb2.SORT_ORDER_ASCENDING) -> Any:
    """Returns a request for all rows of a list with all their parts."""
    request = new_request(method)
    request.page_size, request.order = 1000, order
    for name, value in ids.items():
        field = method.input_type.fields_by_name.get(name)
        if field is not None and not field.has_presence and not field.is_repeated:
            setattr(request, name, value)
    if method.name == "ListAgents":
        request.view.CopyFrom(agents_service_pb2.AgentView(message_ids=True, blocks=True, identities=True, groups=True))
    for name in ("include_diff", "include_embedding", "include_content", "include_traces"):
        if name in method.input_type.fields_by_name:
            setattr(request, name, True)
    return request


def searching(method: MethodDescriptor, ids: dict[str, str], query: str) -> Any:
    """Returns a request for all hits of a search with all their parts."""
    request = new_request(method)
    request.query, request.limit = query, 50
    for name in ("messages_before", "messages_after", "passages_before", "passages_after"):
        if name in method.input_type.fields_by_name:
            setattr(request, name, 2)
    if "mode" in method.input_type.fields_by_name:
        request.mode = TEXT  # vectors follow in the background and change the order
    if method.name == "SearchFiles":
        request.agent_id = ids["agent_id"]
    if method.name == "SearchPassages":
        request.include_embedding = True
    return request


async def filled(mesh: Mesh, openai: FakeOpenAI, mcp_url: str) -> dict[str, str]:
    """Creates at least ROWS rows for each list, and returns the ids that requests of lists need, by field."""
    client, numbers = mesh.client, range(ROWS)
    agents = [
        await client.agents.create(
            name=f"agent {number}", model="openai/gpt-4o", tags=[f"tag {number}"], blocks={f"notes-{number}": "x" * 200}
        )
        for number in numbers
    ]
    first, shared = agents[0], await client.blocks.create("shared", "x")
    for agent in agents:
        await client.blocks.attach(agent.id, shared.id)
    for number in numbers:
        openai.script = [Reply(tool_calls=[("memory_insert", {"label": "shared", "new_str": "y"})]), "Done."]
        await first.ask(f"Hello {number}")
    group = await client.groups.create([agent.id for agent in agents[:2]], description="A group.")
    for number in numbers[1:]:
        await client.groups.create([agents[number].id], description=f"Group {number}.")
    openai.script = ["Hello."] * 8
    await group.ask("What do you think?")
    for number in numbers:
        openai.script = ["Hello."]
        await ended_batch(mesh, first.id, f"Batch {number}")
    archive = await client.archives.create("notes")
    folder = await client.folders.create("papers")
    for number in numbers:
        await client.conversations.create(conversations_pb2.Conversation(agent_id=first.id))
        await client.archives.create(f"archive {number}", description="x" * 200)
        await client.folders.create(f"folder {number}", description="x" * 200)
        await client.archives.attach(agents[number].id, archive.id)
        limit = budgets_pb2.BudgetLimit(period=budgets_pb2.BUDGET_PERIOD_DAY, max_requests=1_000)
        await client.budgets.set([limit], agent_id=agents[number].id)
        await client.passages.insert(f"passage {number}", archive_id=archive.id)
        await client.tools.create(f'def tool_{number}() -> str:\n    """Answers."""\n    return "x"\n')
        await client.mcp_servers.create(f"server-{number}", "http://127.0.0.1:9/mcp")
        await client.providers.create(f"provider-{number}", type="vllm", base_url=openai.base_url)
    for held in [folder.id, *[found.id async for found in client.folders.list(limit=3)]]:
        if held not in [found.id async for found in first.files.folders()]:
            await first.files.attach(held)
    for agent in agents[1:]:
        await agent.files.attach(folder.id)
    uploads = [
        await client.files.upload(folder.id, f"text {number}".encode(), name=f"{number}.txt") for number in numbers
    ]
    for upload in uploads:
        await client.files.wait(upload.file.id)
    webhook, _ = await client.webhooks.create("http://127.0.0.1:1/", events=["run.failed"])
    person = await client.identities.create("ada", "Ada", agent_ids=[agent.id for agent in agents])
    for number in numbers[1:]:
        await client.identities.create(f"key {number}", f"Person {number}")
    for number in numbers:
        await client.schedules.create(f"Schedule {number}", agent_id=first.id, cron="0 9 1 1 *")
        await client.webhooks.create(f"http://127.0.0.1:1/{number}", events=["run.failed"])
        await client.webhooks.test(webhook.id)
        block = await client.blocks.create(f"person-{number}", "x")
        await client.identities.attach(person.id, block_id=block.id)
        scope = episodes_pb2.MemoryScope(name=f"scope {number}")
        await client.episodes.commit(scope, f"Episode {number}")
        await client.facts.create(f"The sea is deep {number}.", name="scope 0")
    fact = (await client.facts.create("The sky is blue 0.", name="scope 0")).fact
    for number in numbers[1:]:
        fact = await client.facts.supersede(fact.id, f"The sky is blue {number}.")
    remote = await client.mcp_servers.create("remote", mcp_url)
    return {
        "agent_id": first.id,
        "archive_id": archive.id,
        "block_id": shared.id,
        "conversation_id": first.proto.default_conversation_id,
        "fact_id": fact.id,
        "folder_id": folder.id,
        "group_id": group.id,
        "identity_id": person.id,
        "mcp_server_id": remote.id,
        "webhook_id": webhook.id,
    }


async def test_every_list_and_search_can_be_followed_in_pages_of_any_size(
    mesh: Mesh, fake_openai: FakeOpenAI, monkeypatch: pytest.MonkeyPatch, *, is_full: bool
) -> None:
    async with running(tools={f"echo_{number}": ECHO for number in range(ROWS)}) as remote:
        ids = await filled(mesh, fake_openai, remote.url)
        for number, method in enumerate(LISTS):
            for order in ORDERS if is_full else (ORDERS[number % 2],):
                whole = [
                    row async for page in pages_of(mesh, method, listing(method, ids, order)) for row in rows_of(page)
                ]
                assert len(whole) >= 2, f"{method.full_name} has too few rows for this test"
                sizes = [sum(size_of(part) for part in row) for row in whole]
                bound = sum(sizes) // 3
                with monkeypatch.context() as patch:
                    patch.setattr(paging, "MAX_PAGE_BYTES", bound)
                    pages = [page async for page in pages_of(mesh, method, listing(method, ids, order))]
                found = [rows_of(page) for page in pages]
                assert len(found) > 1, f"{method.full_name} has no bound"
                assert all(found), f"{method.full_name} has an empty page"
                assert [row for rows in found for row in rows] == whole, method.full_name
                for rows in found:
                    size = sum(size_of(part) for row in rows for part in row)
                    assert len(rows) == 1 or size <= bound, method.full_name
    await require_searches_in_pages(mesh, ids, monkeypatch)
    await require_own_tokens(mesh, ids, monkeypatch)


async def hits_of(mesh: Mesh, method: MethodDescriptor, request: Any) -> list[list[Any]]:
    """Returns the hits of each page of a search."""
    return [list(page.hits) async for page in pages_of(mesh, method, request)]


async def require_searches_in_pages(mesh: Mesh, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search has the same hits in pages of any size."""
    assert QUERIES.keys() == {method.name for method in SEARCHES}
    for method in SEARCHES:
        for query in (QUERIES[method.name], *([] if method.name == "SearchFiles" else [""])):
            (whole,) = await hits_of(mesh, method, searching(method, ids, query))
            assert len(whole) >= ROWS, f"{method.full_name} has too few hits for this test"
            bound = sum(map(size_of, whole)) // 3
            with monkeypatch.context() as patch:
                patch.setattr(paging, "MAX_PAGE_BYTES", bound)
                found = await hits_of(mesh, method, searching(method, ids, query))
                patch.setattr(paging, "MAX_PAGE_BYTES", 1)
                single = await hits_of(mesh, method, searching(method, ids, query))
            assert len(found) > 1, f"{method.full_name} has no bound"
            assert [hit for hits in found for hit in hits] == whole, method.full_name
            assert all(len(hits) == 1 or sum(map(size_of, hits)) <= bound for hits in found), method.full_name
            assert all(found), f"{method.full_name} has an empty page"
            assert single == [[hit] for hit in whole], method.full_name


async def require_own_tokens(mesh: Mesh, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A search refuses the token of another one."""
    monkeypatch.setattr(paging, "MAX_PAGE_BYTES", 1)
    tokens = []
    for method in SEARCHES:
        pages = pages_of(mesh, method, searching(method, ids, QUERIES[method.name]))
        tokens.append((await anext(pages)).next_page_token)
    for method, own in zip(SEARCHES, tokens, strict=True):
        call = getattr(mesh.stubs[service_name(method)], method.name)
        for token in ("x", *tokens):
            request = searching(method, ids, QUERIES[method.name])
            request.page_token = token
            if token == own:
                request.limit -= 1
            with pytest.raises(PageTokenInvalid) as refused:
                await call(request)
            assert refused.value.field == "page_token"


async def test_answers_with_large_messages_are_bounded_by_bytes(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    # A tenth of the real size: words of a million letters take seconds to be analysed.
    monkeypatch.setattr(paging, "MAX_PAGE_BYTES", paging.MAX_PAGE_BYTES // 10)
    client = mesh.client
    agent = await client.agents.create(name="ada")
    texts = [f"oak {letter * (LARGE // 10)}" for letter in "abcdefgh"]
    said = [
        message_pb2.Message(id=new_id("message"), role=message_pb2.ROLE_USER, content=[{"text": {"text": text}}])
        for text in texts
    ]
    await client.messages.append(agent.id, said)
    ids = [message.id for message in said]
    search = messages_service_pb2.SearchMessagesRequest(query="oak", mode=TEXT, agent_id=agent.id, messages_before=1)
    get = messages_service_pb2.GetMessagesRequest(message_ids=[new_id("message"), *ids, new_id("message"), ids[0]])
    pages = [page async for page in pages_of(mesh, method_of("SearchMessages"), search)]
    hits = [hit for page in pages for hit in page.hits]
    assert sorted(hit.message.id for hit in hits) == sorted(ids)
    # The first message has none before it.
    assert [len(hit.before) for hit in hits] == [int(hit.message.id != ids[0]) for hit in hits]
    assert all(page.ByteSize() <= paging.MAX_PAGE_BYTES + OVERHEAD for page in pages)
    assert [message.id for message in await client.messages.get(*get.message_ids)] == [*ids, ids[0]]
    pages = [page async for page in pages_of(mesh, method_of("GetMessages"), get)]
    assert [len(page.messages) for page in pages] == [3, 3, 3]
    assert all(page.ByteSize() <= paging.MAX_PAGE_BYTES + OVERHEAD for page in pages)
    found = await client.messages.search("oak", mode="text", agent_id=agent.id, before=1)
    assert list(found) == hits


async def test_large_rows_fill_pages_of_3_mb(mesh: Mesh) -> None:
    client = mesh.client
    for number in range(4):
        block = await client.blocks.create(f"notes-{number}", "x" * LARGE, limit=LARGE)
        agent = await client.agents.create(name=f"agent {number}")
        await client.blocks.attach(agent.id, block.id)  # No agent is created with more than fits into its window.
    for letter in "abc":
        await client.blocks.update(block.id, value=letter * LARGE)
    for method in LISTS:
        if method.name not in ("ListAgents", "ListBlocks", "ListBlockRevisions"):
            continue
        request = listing(method, {"block_id": block.id})
        if method.name == "ListBlockRevisions":
            request.include_diff = False
        pages = [page async for page in pages_of(mesh, method, request)]
        assert [len(rows_of(page)) for page in pages] == [3, 1], method.full_name
        assert all(page.ByteSize() <= paging.MAX_PAGE_BYTES + OVERHEAD for page in pages), method.full_name
