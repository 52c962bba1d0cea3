"""Reasoning that servers leave in the text of an answer."""

import json
from typing import Any

import pytest
from mnemesh_orchestrator.llm.anthropic_messages import MessagesAnswer
from mnemesh_orchestrator.llm.assembly import StreamedAnswer
from mnemesh_orchestrator.llm.openai_chat import ChatAnswer
from mnemesh_orchestrator.llm.openai_responses import ResponsesAnswer
from mnemesh_orchestrator.llm.port import ReasoningDelta, TextDelta
from mnemesh_orchestrator.llm.think_tags import ThinkTags
from mnemesh_types.messages import ReasoningPart, TextPart

CASES = [
    ("<think>I look.</think>Done.", "I look.", "Done."),
    ("\n <think>\nI look.\n</think>\n\nDone.\n", "I look.", "Done.\n"),
    ("<thinking>I look.</thinking> Done.", "I look.", "Done."),
    ("<Think>I look.</THINK>Done.", "I look.", "Done."),
    ("<thought>I look.</thought>Done.", "I look.", "Done."),
    ("<seed:think>I look.</seed:think>Done.", "I look.", "Done."),
    ("<think>\n\n</think>\n\nDone.", "", "Done."),
    ("<think>One.</think>\n<think>Two.</think>Done.", "One.Two.", "Done."),
    ("<think>a </thinking> < </ b</think>Done.", "a </thinking> < </ b", "Done."),
    ("<think>I look", "I look", ""),
    ("<think>I look.</think>", "I look.", ""),
    ("<think>I look.</think>Then <think>no</think>.", "I look.", "Then <think>no</think>."),
    ("Use <think>tags</think>.", "", "Use <think>tags</think>."),
    ("<thin", "", "<thin"),
    ("<thinker>x</thinker>", "", "<thinker>x</thinker>"),
    ("  two blanks", "", "  two blanks"),
    ("  ", "", "  "),
    ("1 < 2", "", "1 < 2"),
    ("", "", ""),
    ("<mm:think>I look.</mm:think>Done.", "I look.", "Done."),
    ("[THINK]I look.[/THINK]Done.", "I look.", "Done."),
    ("◁think▷I look.◁/think▷Done.", "I look.", "Done."),
    ("</think>\n\nDone.", "", "Done."),
    ("<think>I look.</think>\n</think>\nDone.", "I look.", "Done."),
    ("</thin", "", "</thin"),
]


@pytest.mark.parametrize(("content", "thought", "text"), CASES)
def test_tags_at_the_start_are_separated_wherever_the_text_is_split(content: str, thought: str, text: str) -> None:
    splits = [[content], list(content), *([content[:n], content[n:]] for n in range(len(content)))]
    for pieces in splits:
        tags = ThinkTags()
        found = [*map(tags.add, pieces), tags.end()]
        assert ("".join(one for one, _ in found), "".join(two for _, two in found)) == (thought, text)


@pytest.mark.parametrize("tags", ["<think></think>", "</think>"])
def test_tags_after_many_others_are_text_so_that_the_work_is_bounded(tags: str) -> None:
    _, text = ThinkTags().add(tags * 100_000)
    assert text.endswith(tags * 99_000)


def chat(content: str, *, is_whole: bool) -> tuple[StreamedAnswer, list[Any]]:
    if is_whole:
        return ChatAnswer("fake"), [{"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}]
    pieces = [content[n : n + 3] for n in range(0, len(content), 3)]
    return ChatAnswer("fake"), [
        *({"choices": [{"delta": {"content": piece}}]} for piece in pieces),
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    ]


def responses(content: str, *, is_whole: bool) -> tuple[StreamedAnswer, list[Any]]:
    item = {"type": "message", "content": [{"type": "output_text", "text": content}]}
    whole = {"object": "response", "status": "completed", "output": [item]}
    where = {"output_index": 0, "content_index": 0}
    pieces = [content[n : n + 3] for n in range(0, len(content), 3)]
    events = [
        *({"type": "response.output_text.delta", **where, "delta": piece} for piece in pieces),
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return ResponsesAnswer("fake"), [whole] if is_whole else events


def messages(content: str, *, is_whole: bool) -> tuple[StreamedAnswer, list[Any]]:
    block = {"type": "text", "text": content}
    pieces = [content[n : n + 3] for n in range(0, len(content), 3)]
    events = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
            for piece in pieces
        ),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    ]
    whole = {"type": "message", "content": [block], "stop_reason": "end_turn"}
    return MessagesAnswer("fake"), [whole] if is_whole else events


@pytest.mark.parametrize("api", [chat, responses, messages])
@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize(("content", "thought", "text"), [*CASES[:3], CASES[6], CASES[9], *CASES[12:14]])
def test_reasoning_in_tags_is_reasoning_for_every_api(
    api: Any, content: str, thought: str, text: str, *, is_whole: bool
) -> None:
    answer, events = api(content, is_whole=is_whole)
    deltas = [delta for event in events for delta in answer.add(event)] + answer.end(is_done=True)
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == thought
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == text
    parts = (ReasoningPart(thought, is_native=True),) if thought else ()
    assert answer.content == (parts + ((TextPart(text),) if text else ()))
    assert all(word in json.dumps(answer.body) for word in (thought, text.strip()))


@pytest.mark.parametrize(
    ("content", "thought", "text"),
    [
        ("I look.\n</think>\n\nDone.", "I look.", "Done."),
        ("I look.\n\n</think>", "I look.", ""),
        ("</think>\n\nDone.", "", "Done."),
        ("I look.\n</thinking>\nDone.", "I look.", "Done."),
        ("Close it with </think> at the end.", "", "Close it with </think> at the end."),
        ("```\nI look.\n</think>\n```", "", "```\nI look.\n</think>\n```"),
        ("Write <think>\nwords\n</think>\nlike this.", "", "Write <think>\nwords\n</think>\nlike this."),
    ],
)
def test_missing_opening_tag_is_understood_where_it_is_safe(content: str, thought: str, text: str) -> None:
    answer, events = chat(content, is_whole=False)
    for event in events:
        answer.add(event)
    answer.end(is_done=True)
    parts = (ReasoningPart(thought, is_native=True),) if thought else ()
    assert answer.content == (parts + ((TextPart(text),) if text else ()))


def test_tags_in_arguments_and_after_native_reasoning_stay() -> None:
    arguments = '{"text": "<think>no</think>"}'
    call = {"index": 0, "id": "c", "function": {"name": "say", "arguments": arguments}}
    answer = ChatAnswer("fake")
    answer.add({"choices": [{"delta": {"reasoning_content": "Hm.\n</think>\nHm.", "tool_calls": [call]}}]})
    answer.add({"choices": [{"delta": {"content": "A\n</think>\nB"}, "finish_reason": "stop"}]})
    answer.end(is_done=True)
    assert answer.content == (ReasoningPart("Hm.\n</think>\nHm.", is_native=True), TextPart("A\n</think>\nB"))
    assert [given.arguments for given in answer.tool_calls] == [arguments]
