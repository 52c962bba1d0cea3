"""Groups over the wire."""

import pytest
from mnemesh.agents.v1 import groups_service_pb2 as rpc
from mnemesh_kit.errors import AlreadyExists, PageTokenInvalid
from mnemesh_testkit.mesh.in_process import Mesh


async def test_messages_of_a_group_are_listed_page_by_page(mesh: Mesh) -> None:
    ada, bob = [await mesh.client.agents.create(name=name) for name in ("ada", "bob")]
    group = await mesh.client.groups.create([ada.id, bob.id])
    await group.ask("What do you think?")
    stub = mesh.stubs["mnemesh.agents.v1.GroupService"]
    whole = (await stub.ListGroupMessages(rpc.ListGroupMessagesRequest(group_id=group.id))).messages
    request, pages = rpc.ListGroupMessagesRequest(group_id=group.id, page_size=2), []
    while True:
        page = await stub.ListGroupMessages(request)
        pages.append(list(page.messages))
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert [message.id for page in pages for message in page] == [message.id for message in whole]
    assert {message.agent_id for message in whole} == {ada.id, bob.id}
    assert len(pages) == (len(whole) + 1) // 2 > 1
    request = rpc.ListGroupMessagesRequest(group_id=group.id, page_size=2, page_token=request.page_token)
    request.agent_id = ada.id
    with pytest.raises(PageTokenInvalid):
        await stub.ListGroupMessages(request)


async def test_shared_block_with_a_taken_label_is_refused_with_its_field(mesh: Mesh) -> None:
    ada, bob = [await mesh.client.agents.create(name=name, blocks={"plan": name}) for name in ("ada", "bob")]
    (block,) = (await ada.memory()).blocks
    with pytest.raises(AlreadyExists) as raised:
        await mesh.client.groups.create([ada.id, bob.id], shared_block_ids=[block.id])
    assert raised.value.reason == "BLOCK_LABEL_TAKEN"
    assert raised.value.field == "group.shared_block_ids"
    assert raised.value.metadata["agent_id"] == bob.id
