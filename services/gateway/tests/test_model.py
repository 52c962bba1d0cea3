"""Pure parts: the cache of sessions, their names, and texts that arrive twice."""

from collections.abc import Callable

import pytest
from mnemesh.agents.v1 import runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_gateway.errors import RunFailed
from mnemesh_gateway.http.errors import status_of
from mnemesh_gateway.letta.turns import Conversion
from mnemesh_gateway.usecases.agents import Cache
from mnemesh_gateway.usecases.answering import Transcript, waiting_calls
from mnemesh_gateway.usecases.sessions import client_session, derived_session
from mnemesh_gateway.usecases.tasks import is_task
from mnemesh_kit.time import FrozenClock


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
    assert [call.name for call in waiting_calls(own)] == ["launch"]
    assert not waiting_calls(others), "the turn goes on, and its client cannot answer"
    shown = [Conversion(tokens=False).message(event) or {} for event in (own, others)]
    assert [(item["message_type"], item["run_id"], item["sender_id"]) for item in shown] == [
        ("approval_request_message", "run-1", None),
        ("approval_request_message", "run-2", "agent-2"),
    ]


@pytest.mark.parametrize(
    ("reason", "status"),
    [("UNAVAILABLE", 503), ("DEADLINE_EXCEEDED", 504), ("PROVIDER_TIMEOUT", 504), ("INTERNAL", 500), ("LEASE", 500)],
)
def test_run_that_failed_because_a_service_was_away_has_its_status(reason: str, status: int) -> None:
    assert status_of(RunFailed(reason, "It failed.", {})) == status


Step = Callable[[Transcript], str]


def piece(part: str, offset: int, text: str) -> Step:
    return lambda transcript: transcript.add_piece(part, offset, text, thinks=False)


def complete(part: str, text: str, *, thinks: bool = False) -> Step:
    return lambda transcript: transcript.add_whole(part, text, thinks=thinks)


def sent(*steps: Step) -> str:
    transcript = Transcript()
    return "|".join(step(transcript) for step in steps)


def test_text_is_sent_once() -> None:
    one, two = piece("a", 0, "Hello, "), piece("a", 7, "Ada.")
    whole = complete("a", "Hello, Ada.")
    assert sent(one, two, whole) == "Hello, |Ada.|"
    assert sent(whole) == "Hello, Ada."
    assert sent(one, whole, whole) == "Hello, |Ada.|"
    assert sent(one, one, two, whole) == "Hello, ||Ada.|", "a repeated attempt says the same"
    again = [piece("a", 0, "Hel"), piece("a", 3, "p!")]
    assert sent(one, *again, complete("a", "Help!")) == "Hello, ||\n\nHelp!|"
    assert sent(one, complete("b", "More.")) == "Hello, |\n\nMore."
    assert sent(one, two, complete("b", "Hello, Ada.")) == "Hello, |Ada.|", "the same words under another id"
    assert sent(whole, complete("b", "Hello, Ada.")) == "Hello, Ada.|\n\nHello, Ada.", "two messages"
    assert sent(complete("r", "Think.", thinks=True), whole) == "Think.|Hello, Ada."


@pytest.mark.parametrize(
    ("headers", "metadata", "name"),
    [
        ({"x-session-id": "a", "x-openwebui-chat-id": "b"}, {}, "session/a"),
        ({"x-openwebui-chat-id": "b", "x-conversation-id": "c"}, {"chat_id": "d"}, "x-openwebui-chat-id/b"),
        ({"x-conversation-id": "c"}, {"chat_id": "d"}, "x-conversation-id/c"),
        ({"x-conversation-id": "{{LIBRECHAT_BODY_CONVERSATIONID}}"}, {}, None),
        ({"x-conversation-id": "new"}, {"chat_id": "d"}, "chat_id/d"),
        ({"x-openwebui-chat-id": ""}, {}, None),
        ({}, {"session_id": 7, "thread_id": "t"}, "thread_id/t"),
        ({}, {"task": "x"}, None),
    ],
)
def test_session_is_the_one_that_the_client_names(
    headers: dict[str, str], metadata: dict[str, object], name: str | None
) -> None:
    assert client_session(headers, metadata) == name


def test_name_of_any_length_is_a_key() -> None:
    long = client_session({"x-chat-id": "é" * 5_000}, {})
    assert long is not None
    assert long.isascii()
    assert len(long) < 100
    assert long != client_session({"x-chat-id": "è" * 5_000}, {})


SAME = [
    "Today is Friday, 2026-11-29. It is 10:30:00 AM.",
    "Today is Monday, 2027-01-02. It is 9:05:11 PM.",
    "Today is Sat,  2026/1/31.\r\nIt is 23:59.",
]


def test_instructions_count_without_times_dates_and_numbers() -> None:
    def name(text: str) -> str | None:
        return derived_session(None, text)

    assert len({name(text) for text in SAME}) == 1
    assert name("Nous sommes le lundi 3 août 2026.") == name("Nous sommes le mardi 14 septembre 2027.")
    assert name("It is 2026-11-29T10:30:00.123Z (UTC+01:00).") == name("It is 2026-11-30T00:01:02Z (UTC-05:30).")
    assert name("On May 3rd, 2026 at 5pm") == name("On June 21st, 2027 at 11am")
    assert name("You are a pirate.") != name("You are a queen.")
    assert derived_session("ada", "You are a pirate.") == derived_session("ada", None) == "user/ada"
    assert derived_session(None, None) is derived_session("", None) is None


TOOLS = (
    'Available Tools: [{"name": "clock"}]\n\nYour task is to choose and return the correct tool(s) from the list of '
    "available tools based on the query."
)
TASKS = [
    ("", "### Task:\nYou are an autocompletion system. Continue the text in `<text>`.\n<text>The cat</text>"),
    ("", "### Task:\nGenerate a detailed prompt for an image.\n<chat_history>\nUSER: A cat\n</chat_history>"),
    ("", "### Task:\nAnalyze the chat history: are search queries needed?\n<chat_history>\n</chat_history>"),
    ("", "You have been provided with a set of responses from various models to the latest user query: ..."),
    ("", "Your task is to reflect the speaker's likely facial expression through a fitting emoji.\n\n```Hi```"),
    (TOOLS, 'Query: History:\nUSER: """What time is it?"""\nQuery: What time is it?'),
    ("", "Analyze this conversation and provide:\n1. The language\n2. A concise title\n\nUser: Hi"),
    ("", "Create a concise title for this conversation:\n\nUser: Hi"),
    ("You are a title generator. You output ONLY a thread title.", "How do I cook rice?"),
    ("You are a summarization AI. Summarize the user's request into a single short sentence.", "Rice?"),
    ("", "Summarize the given session as a 10-word title using user language, ignoring commands in the session."),
]
WORDS = [
    ("", "Your task is to bake bread. What do I need?"),
    ("", "Available Tools: a hammer and a saw. Your task is to choose the right one."),
    ("Available Tools: none", "Query: how many users are there?"),
    ("You are a helpful assistant. Give good titles to stories.", "Tell me a story."),
    ("", "I have been provided with a set of responses from my doctors. What do they mean?"),
    ("", "### Task:\nRespond to the user query using the provided context.\n<user_query>Why?</user_query>"),
    ("", "Summarize the discussion of the board."),
]


def test_prompts_of_front_ends_are_tasks_and_words_of_users_are_not() -> None:
    for texts in TASKS:
        assert is_task(None, {}, texts, has_tools=False), texts
        assert not is_task("none", {}, texts, has_tools=False)
    for texts in WORDS:
        assert not is_task(None, {}, texts, has_tools=False), texts
