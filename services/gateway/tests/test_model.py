"""Pure parts: the cache of sessions, and texts that arrive twice."""

from __future__ import annotations

from mnemesh.agents.v1 import runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_gateway.clients.convert import event_from_proto
from mnemesh_gateway.letta.convert.events import Conversion
from mnemesh_gateway.model.runs import KeptAlive, Piece, Waiting, Whole
from mnemesh_gateway.usecases.answering import Transcript
from mnemesh_gateway.usecases.cache import Cache
from mnemesh_kit.clock import FrozenClock


def test_cache_keeps_the_entries_that_were_used_last_for_a_limited_time() -> None:
    clock = FrozenClock()
    cache: Cache[int, str] = Cache(100, 3 * 3600, clock)
    for number in range(100):
        cache.put(number, str(number))
    assert cache.get(0) == "0"
    cache.put(100, "100")
    assert (cache.get(1), cache.get(0), cache.get(100)) == (None, "0", "100")
    clock.advance(3 * 3600 - 1)
    assert cache.get(0) == "0"
    clock.advance(1)
    assert (cache.get(0), list(cache.items())) == (None, [])


def test_approval_of_another_agent_is_shown_as_far_as_an_api_can() -> None:
    request = runs_pb2.ApprovalRequestMessage(tool_calls=[message_pb2.ToolCall(id="call_1", name="launch")])
    message = runs_pb2.MessageEvent(message_id="message-1", approval_request=request)
    own = runs_pb2.RunEvent(run_id="run-1", sequence=3, message=message)
    others = runs_pb2.RunEvent(run_id="run-1", sequence=3, agent_id="agent-2", child_run_id="run-2", message=message)
    assert isinstance(event_from_proto(own), Waiting)
    assert event_from_proto(others) == KeptAlive(), "the turn goes on, and its client cannot answer"
    shown = [Conversion(tokens=False).message(event) or {} for event in (own, others)]
    assert [(item["message_type"], item["run_id"], item["sender_id"]) for item in shown] == [
        ("approval_request_message", "run-1", None),
        ("approval_request_message", "run-2", "agent-2"),
    ]


def sent(*events: Piece | Whole) -> str:
    transcript = Transcript()
    return "|".join(transcript.add(event) for event in events)


def test_text_is_sent_once() -> None:
    one, two = Piece("a", 0, "Hello, ", False), Piece("a", 7, "Ada.", False)
    whole = Whole("a", "Hello, Ada.", False)
    assert sent(one, two, whole) == "Hello, |Ada.|"
    assert sent(whole) == "Hello, Ada."
    assert sent(one, whole, whole) == "Hello, |Ada.|"
    assert sent(one, one, two, whole) == "Hello, ||Ada.|", "a repeated attempt says the same"
    again = [Piece("a", 0, "Hel", False), Piece("a", 3, "p!", False)]
    assert sent(one, *again, Whole("a", "Help!", False)) == "Hello, ||\n\nHelp!|"
    assert sent(one, Whole("b", "More.", False)) == "Hello, |\n\nMore."
    assert sent(one, two, Whole("b", "Hello, Ada.", False)) == "Hello, |Ada.|", "the same words under another id"
    assert sent(whole, Whole("b", "Hello, Ada.", False)) == "Hello, Ada.|\n\nHello, Ada.", "two messages"
    assert sent(Whole("r", "Think.", True), whole) == "Think.|Hello, Ada."
