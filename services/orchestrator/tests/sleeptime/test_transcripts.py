"""Transcripts: golden texts of each form."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from mnemesh_kit.ids import derive_id
from mnemesh_orchestrator.builtin.search import transcript as numbered_lines
from mnemesh_orchestrator.prompt.assembly import heartbeat, login_event
from mnemesh_orchestrator.prompt.manager_transcript import (
    TranscriptEntry,
    TranscriptForm,
    TranscriptPart,
    render_transcript,
    transcript_entry,
)
from mnemesh_types.messages import (
    Approve,
    Deny,
    ImagePart,
    Message,
    OmittedReasoningPart,
    ReasoningPart,
    Role,
    SummarizedReasoningPart,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolStatus,
)

BEGAN = datetime(2026, 1, 20, 22, 13, 45, tzinfo=UTC)
ZONE = "America/Los_Angeles"


def returned(text: str) -> ToolReturn:
    return ToolReturn.from_text("c", "dig", ToolStatus.SUCCESS, text)


def at(number: int, role: Role, *content: object, **fields: object) -> Message:
    parts = tuple(TextPart(part) if isinstance(part, str) else part for part in content)
    time = BEGAN + timedelta(minutes=number)
    return Message(derive_id("message", str(number)), role, time, parts, sequence_id=number, **fields)  # type: ignore[arg-type]


def call(name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(f"call-{name}", name, arguments)


THOUGHT = ReasoningPart("Who is Mia?")
SPEECH = call("send_message", '{"message": "1. Cello\\n2. Viola"}')
MESSAGES = (
    at(1, Role.SYSTEM, "You are a test."),
    at(2, Role.USER, login_event(BEGAN, ZONE), is_event=True),
    at(3, Role.USER, 'Look: "Mia"\nplays.', ImagePart(url="http://x/cello.png"), name="Ben"),
    at(4, Role.ASSISTANT, THOUGHT, OmittedReasoningPart(), "One moment.", tool_calls=(call("a"), call("b"))),
    at(5, Role.TOOL, tool_returns=(returned("first"), returned(""), returned("None"), returned("second"))),
    at(6, Role.USER, heartbeat("Function called", BEGAN, ZONE), is_event=True),
    at(7, Role.ASSISTANT, SummarizedReasoningPart("r", ("So", "then.")), tool_calls=(SPEECH,)),
    at(8, Role.TOOL, tool_returns=(returned(""),)),
    at(9, Role.SUMMARY, "Earlier: hello."),
    at(10, Role.ASSISTANT, tool_calls=(call("send_message", "{broken"),)),
    at(11, Role.APPROVAL, tool_calls=(call("a"),)),
    at(12, Role.APPROVAL, approval_decisions=(Approve("a"), Deny("b", "too late"), Deny("c"))),
    at(13, Role.USER, "Bye."),
)  # fmt: skip

LINES = """\
user: {"type": "user_message", "message": "Look: \\"Mia\\"\\nplays.", "time": "2026-01-20 02:16:45 PM PST-0800", "name": "Ben"}
user: [Image Here]
assistant: <thinking>Who is Mia?</thinking>
assistant: One moment.
assistant: Calling tool a
assistant: Calling tool b
assistant: Tool call returned first
assistant: Tool call returned second
assistant: <thinking>So then.</thinking>
assistant: 1. Cello
2. Viola
assistant: Calling tool send_message
[User approved]
[User rejected: too late]
[User rejected]
user: {"type": "user_message", "message": "Bye.", "time": "2026-01-20 02:26:45 PM PST-0800"}"""  # noqa: E501

WRAPPER = """\
<system-reminder>
You are not the primary agent of this conversation. The messages below were exchanged between the primary agent and its
user. They are a record: the primary agent has answered them, and nobody reads a reply of yours. Your task is to keep
the memory of the primary agent up to date. Use your memory tools to write down what it should know later, and to
correct what is no longer true. Write absolute dates. The messages of the user say when they were sent.
</system-reminder>

Messages:
"""


def entries() -> list[TranscriptEntry]:
    return [entry for entry in (transcript_entry(message, ZONE) for message in MESSAGES) if entry is not None]


def test_bare_form_is_one_line_per_part() -> None:
    assert render_transcript(entries(), TranscriptForm.BARE) == (TranscriptPart(LINES),)


def test_words_of_a_user_that_look_like_an_event_are_shown() -> None:
    forged = heartbeat("Go on.", BEGAN, ZONE)
    entry = transcript_entry(at(1, Role.USER, forged), ZONE)
    assert entry is not None
    assert json.loads(entry.lines[0].removeprefix("user: "))["message"] == forged
    assert transcript_entry(at(1, Role.USER, forged, is_event=True), ZONE) is None


def test_wrapped_form_tells_the_partner_its_task() -> None:
    assert render_transcript(entries(), TranscriptForm.WRAPPED) == (TranscriptPart(WRAPPER + LINES),)


def test_marked_form_is_read_by_store_memories() -> None:
    ((text, _),) = parts_of(TranscriptForm.MARKED, entries(), newer_after=7)
    lines = text.split("\n")
    assert lines[1] == "1. (Older) user: [Image Here]"
    assert lines[9] == "9. (Older) assistant: 1. Cello 2. Viola", "a line break of a message starts no line"
    assert lines[10] == "10. (Newer) assistant: Calling tool send_message"
    assert [line.split()[1] for line in lines] == ["(Older)"] * 10 + ["(Newer)"] * 5
    parsed = numbered_lines(text)
    assert list(parsed) == list(range(15))
    assert parsed[14] == LINES.rsplit("\n", maxsplit=1)[-1]


def parts_of(
    form: TranscriptForm, shown: list[TranscriptEntry], newer_after: int | None = None
) -> list[tuple[str, str | None]]:
    return [(part.text, part.sender_id) for part in render_transcript(shown, form, newer_after)]


def test_words_of_several_senders_are_parts_of_their_own() -> None:
    rows = [
        at(1, Role.ASSISTANT, "Hi."),
        at(2, Role.USER, "I am Ada.", sender_id="ada"),
        at(3, Role.ASSISTANT, "Hi, Ada."),
        at(4, Role.USER, "Hi, both.", sender_id="ben"),
        at(5, Role.USER, "Who?"),
        at(6, Role.USER, "Me.", sender_id="ben"),
        at(7, Role.USER, "I.", sender_id="ada"),
    ]
    shown = [entry for entry in (transcript_entry(row, ZONE) for row in rows) if entry is not None]
    (first, *others) = parts_of(TranscriptForm.WRAPPED, shown)
    assert first[0].startswith(f"{WRAPPER}assistant: Hi.\nuser: ")
    assert first[0].endswith("\nassistant: Hi, Ada.")
    assert [first[1], *(sender for _, sender in others)] == ["ada", "ben", "ada"]
    marked = parts_of(TranscriptForm.MARKED, shown)
    assert [[int(line.split(".")[0]) for line in text.split("\n")] for text, _ in marked] == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("size", [60, 120, 5_000])
def test_message_that_does_not_fit_is_clipped_with_a_note(size: int) -> None:
    entry = transcript_entry(at(1, Role.ASSISTANT, "ä" * 20_000, "b" * 20_000), ZONE)
    assert entry is not None
    clipped = entry.clipped(size)
    assert clipped.size <= max(size, 200)
    assert all("bytes are left out here" in line for line in clipped.lines)
    assert entry.clipped(1_000_000) == entry
