"""Windows with large messages: their pages are of one version."""

from typing import Any

import pytest
from mnemesh.recall.v1 import contexts_pb2
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit import paging
from mnemesh_kit.errors import Aborted
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import whole_answer


def message(role: int, text: str = "", **fields: Any) -> pb.Message:
    created = pb.Message(id=new_id("message"), role=role, **fields)  # type: ignore[arg-type]
    if text:
        created.content.add().text.text = text
    return created


async def window(recall: Any) -> contexts_pb2.Context:
    """Creates a window with 13 messages; the last call has no return."""
    asked = message(pb.ROLE_ASSISTANT, tool_calls=[pb.ToolCall(id="c", name="n", arguments="{}")])
    said = [message(pb.ROLE_USER, f"{number}" * 1_000) for number in range(10)]
    request = rpc.CreateContextRequest(
        agent_id=new_id("agent"),
        conversation_id=new_id("conv"),
        messages=[message(pb.ROLE_SYSTEM, "prompt"), *said, asked],
    )
    created = (await recall.CreateContext(request)).context
    wanted = rpc.GetContextRequest(conversation_id=created.conversation_id)
    whole = (await recall.GetContext(wanted)).context
    assert len(whole.messages) == 13, "the call has a return that is not stored"
    return whole  # type: ignore[no-any-return]


async def test_a_window_is_read_in_pages_of_any_size(recall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = await window(recall)
    for bound in (3_500, 1):
        monkeypatch.setattr(paging, "MAX_PAGE_BYTES", bound)
        request = rpc.GetContextRequest(conversation_id=whole.conversation_id)
        found = await whole_answer(recall.GetContext, request, seconds=10, field="context.messages")
        assert found.context == whole
        sizes = []
        while True:
            page = await recall.GetContext(request)
            sizes.append(len(page.context.messages))
            assert sizes[-1] == 1 or sum(each.ByteSize() for each in page.context.messages) <= bound
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        assert len(sizes) > 3
        assert sum(sizes) == 13
    known = rpc.GetContextRequest(conversation_id=whole.conversation_id, if_version=whole.version)
    answer = await recall.GetContext(known)
    assert (answer.not_modified, answer.next_page_token) == (True, "")


async def test_a_change_between_two_pages_is_noticed(recall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = await window(recall)
    monkeypatch.setattr(paging, "MAX_PAGE_BYTES", 3_500)
    request = rpc.GetContextRequest(conversation_id=whole.conversation_id, if_version=whole.version + 1)
    first = await recall.GetContext(request)
    gone = rpc.DeleteMessageRequest(message_id=whole.messages[1].id)
    await recall.DeleteMessage(gone)
    request.page_token = first.next_page_token
    with pytest.raises(Aborted):
        await recall.GetContext(request)
    again = rpc.GetContextRequest(conversation_id=whole.conversation_id)
    found = await whole_answer(recall.GetContext, again, seconds=10, field="context.messages")
    assert list(found.context.messages) == [whole.messages[0], *whole.messages[2:]]
