"""A cached rendering equals a new one, whatever changed in the window."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mnemesh_orchestrator.llm import anthropic_messages, openai_chat, openai_responses
from mnemesh_orchestrator.llm.history import (
    history_turns,
)
from mnemesh_orchestrator.llm.wire import RenderCache, UserTurn, encode_body
from mnemesh_orchestrator.model.models import ModelInfo
from mnemesh_types.messages import Approve, ImagePart, Message, Role, TextPart, ToolCall

from .windows import CLAUDE, NOON, OPENAI, THINKER, ask, called, message, returned

Render = Callable[..., dict[str, Any]]
RENDERERS: list[tuple[ModelInfo, Render]] = [
    (OPENAI, openai_chat.render_body),
    (THINKER, openai_responses.render_body),
    (CLAUDE, anthropic_messages.render_body),
]


def appended(window: list[Message], number: int, kind: str) -> list[Message]:
    """Returns the window with another exchange at its end."""
    match kind:
        case "words":
            return [
                *window,
                message(number, Role.USER, f"Question {number}?"),
                message(number + 1, Role.ASSISTANT, f"Answer {number}."),
            ]
        case "call":
            return [
                *window,
                called(number, f"call_{number % 7}", "look_up"),
                returned(number + 1, f"call_{number % 7}", "look_up", "Found."),
            ]
        case "open call":
            return [*window, called(number, f"call_{number}", "look_up")]
        case "late return":
            return [*window, returned(number, f"call_{number - 10}", "look_up", "Late.")]
        case "approval":
            call = ToolCall(f"call_{number}", "delete", "{}")
            return [
                *window,
                message(number, Role.ASSISTANT, tool_calls=(call,)),
                message(number + 1, Role.APPROVAL, tool_calls=(call,)),
                message(number + 2, Role.APPROVAL, approval_decisions=(Approve(call.id),), approval_request_id="x"),
                returned(number + 3, call.id, "delete", "Deleted."),
            ]
        case _:
            return [*window, message(number, Role.USER, "Look:", ImagePart(data=b"\x89PNG", media_type="image/png"))]


KINDS = ["words", "call", "open call", "late return", "approval", "image"]
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(KINDS)),
        st.tuples(st.just("edit"), st.integers(0, 30)),
        st.tuples(st.just("copy"), st.none()),
        st.tuples(st.just("compact"), st.integers(1, 12)),
        st.tuples(st.just("note"), st.none()),
    ),
    max_size=14,
)


@pytest.mark.parametrize(("model", "render"), RENDERERS, ids=[model.handle for model, _ in RENDERERS])
@given(changes=CHANGES)
def test_cached_rendering_is_never_stale(model: ModelInfo, render: Render, changes: list[tuple[str, Any]]) -> None:
    cache, window, number = (
        RenderCache(),
        [message(0, Role.SYSTEM, "You are an agent."), message(1, Role.USER, "Hi.")],
        10,
    )
    for change, value in changes:
        number += 10
        match change:
            case "append":
                window = appended(window, number, value)
            case "edit":  # like UpdateMessage and a new system message: the same id, other content
                index = value % len(window)
                window[index] = replace(window[index], content=(TextPart(f"Edited {number}."),))
            case "copy":  # like a window that is read again from recall
                window = [replace(item) for item in window]
            case "compact":
                window = [window[0], message(number, Role.SUMMARY, f"Summary {number}."), *window[value + 1 :]]
        request = ask(model, *window, *([message(number, Role.USER, "A note.")] if change == "note" else []))
        assert encode_body(render(request, cache)) == encode_body(render(request, RenderCache()))


def test_turns_of_unchanged_messages_are_reused() -> None:
    cache = RenderCache()
    window = [message(0, Role.SYSTEM, "You are an agent."), *(message(n, Role.USER, f"{n}") for n in range(1, 60))]
    first = history_turns(ask(OPENAI, *window), cache)
    edited = replace(window[40], content=(TextPart("Edited."),))
    second = history_turns(ask(OPENAI, *window[:40], edited, *window[41:]), cache)
    assert all(ours is theirs for ours, theirs in zip(first[1:40], second[1:40], strict=True))
    assert first[40] != second[40]


def test_text_of_stored_input_is_reused() -> None:
    cache = RenderCache()
    window = [message(0, Role.SYSTEM, "You are an agent."), message(1, Role.USER, "Hi.")]
    (_, first) = history_turns(ask(OPENAI, *window), cache)
    stored = replace(window[1], step_id="step-1", turn_id="turn-1", sequence_id=7)
    (_, second) = history_turns(ask(OPENAI, window[0], stored), cache)
    assert isinstance(first, UserTurn)
    assert isinstance(second, UserTurn)
    assert second.text is first.text


def test_edit_of_one_field_is_rendered_again() -> None:
    cache = RenderCache()
    window = [message(0, Role.SYSTEM, "You are an agent."), message(1, Role.USER, "Hi.")]
    openai_chat.render_body(ask(OPENAI, *window), cache)
    renamed = replace(window[1], name="Ada", created_at=NOON.replace(year=2027))
    assert openai_chat.render_body(ask(OPENAI, window[0], renamed), cache) == openai_chat.render_body(
        ask(OPENAI, window[0], renamed), RenderCache()
    )
