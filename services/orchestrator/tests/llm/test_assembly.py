"""How the adapters assemble an answer: what tells one call from the next, the bounds, and the work per piece."""

import json
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.llm.anthropic_messages import MessagesAnswer
from mnemesh_orchestrator.llm.assembly import MAX_ANSWER_BYTES, MAX_CALLS, StreamedAnswer, settled_arguments
from mnemesh_orchestrator.llm.errors import ProviderBadAnswer
from mnemesh_orchestrator.llm.openai_chat import ChatAnswer
from mnemesh_orchestrator.llm.openai_responses import ResponsesAnswer
from mnemesh_orchestrator.llm.port import LlmEvent, ToolCallDelta
from mnemesh_orchestrator.loop.step_messages import DeltaStream
from mnemesh_types.usage import Usage

MISSING = object()


def piece(
    index: object = MISSING, id_: object = MISSING, name: object = MISSING, arguments: object = MISSING
) -> dict[str, Any]:
    """Returns a piece of a tool call of a chat completion."""
    function = {"name": name, "arguments": arguments}
    given = {"index": index, "id": id_, "function": {k: v for k, v in function.items() if v is not MISSING}}
    return {key: value for key, value in given.items() if value is not MISSING}


def chunk(*pieces: dict[str, Any], **delta: Any) -> dict[str, Any]:
    if pieces:
        delta["tool_calls"] = list(pieces)
    return {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


FINISH = {"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}


def read(answer: StreamedAnswer, events: Iterable[Any], *, is_done: bool = True) -> list[LlmEvent]:
    deltas = [delta for event in events for delta in answer.add(event)]
    return deltas + answer.end(is_done=is_done)


def calls(answer: StreamedAnswer) -> list[tuple[str, Any, str | None]]:
    return [(call.name, json.loads(call.arguments), call.provider_id) for call in answer.tool_calls]


ONE = [("tick", {"n": 1}, "c1")]
ONE_WITHOUT_ID = [("tick", {"n": 1}, None)]
TWO = [("tick", {"n": 1}, "c1"), ("tock", {"n": 2}, "c2")]
TWO_WITHOUT_ID = [*ONE_WITHOUT_ID, ("tick", {"n": 2}, None)]
HEAD, TAIL = '{"n"', ":1}"
SECOND = '{"n":2}'


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param(
            [piece(0, "c1", "tick", ""), *(piece(0, name="tick", arguments=text) for text in (HEAD, TAIL, ""))],
            ONE,
            id="name in each piece, and an empty piece at the end",
        ),
        pytest.param(
            [piece(0, "c1", "tick", HEAD), piece(0, "c1", "tick", TAIL), piece(0, "c1", "tick", "")],
            ONE,
            id="id and name in each piece",
        ),
        pytest.param(
            [piece(0, "c1", "", HEAD), piece(0, "", "tick", TAIL), piece(0, None, None, None)],
            ONE,
            id="name after id and arguments",
        ),
        pytest.param(
            [piece(0, "c1", "tick", HEAD), piece(0, arguments=TAIL), piece(0, "c1", "tick", HEAD + TAIL)],
            ONE,
            id="whole call repeated at the end",
        ),
        pytest.param(
            [piece(0, name="tick", arguments=HEAD), piece(0, "c1", arguments=TAIL)], ONE, id="id in a later piece only"
        ),
        pytest.param(
            [piece(0, "c1", "ti"), piece(0, name="ck"), piece(0, arguments=HEAD + TAIL)], ONE, id="split name"
        ),
        pytest.param(
            [piece(0, "c1", "ti", ""), piece(0, "c1", "tick", ""), piece(0, arguments=HEAD + TAIL)],
            ONE,
            id="growing name",
        ),
        pytest.param([piece(0, "c1", "tick", {"n": 1})], ONE, id="arguments as an object"),
        pytest.param([piece(0, "c1", "tick", {}), piece(0, arguments=HEAD + TAIL)], ONE, id="empty object first"),
        pytest.param(
            [piece(0, "c1", "tick", "{}"), piece(0, arguments=HEAD + TAIL)], ONE, id="empty object as text first"
        ),
        pytest.param(
            [piece(0, "c1", "tick", HEAD), piece(0, "c2", arguments=TAIL)],
            ONE,
            id="another id in each piece without a name",
        ),
        pytest.param(
            [piece(None, "c1", "tick", HEAD), piece(None, arguments=TAIL), piece(None, None, "tick", "")],
            ONE,
            id="null indexes",
        ),
        pytest.param([piece(name="tick", arguments=HEAD), piece(arguments=TAIL)], ONE_WITHOUT_ID, id="no index, no id"),
        pytest.param(
            [piece(id_="c1", name="tick", arguments=HEAD + TAIL)] * 2, ONE, id="no index, whole call repeated"
        ),
        pytest.param([piece(id_="c1", name="tick"), piece(0, arguments=HEAD + TAIL)], ONE, id="index in a later piece"),
        pytest.param([piece("0", "c1", "tick", HEAD), piece("0", None, None, TAIL)], ONE, id="index as a text"),
        pytest.param([piece(0, "c1", "tick", HEAD + TAIL), piece(1, "c2", "tock", '{"n":2}')], TWO, id="two indexes"),
        pytest.param(
            [piece(0, "c1", "tick", HEAD + TAIL), piece(0, "c2", "tock", '{"n":2}')], TWO, id="a new id at index 0"
        ),
        pytest.param(
            [
                piece(0, "c1", "tick", HEAD),
                piece(0, "c2", "tock", '{"n"'),
                piece(0, "c1", None, TAIL),
                piece(0, "c2", None, ":2}"),
            ],
            TWO,
            id="interleaved at index 0",
        ),
        pytest.param(
            [
                piece(0, "c1", "tick", ""),
                piece(1, "c2", "tock", ""),
                piece(1, arguments='{"n"'),
                piece(0, arguments=HEAD),
                piece(1, arguments=":2}"),
                piece(0, arguments=TAIL),
            ],
            TWO,
            id="interleaved",
        ),
        pytest.param(
            [
                piece(id_="c1", name="tick", arguments=HEAD),
                piece(arguments=TAIL),
                piece(id_="c2", name="tock"),
                piece(arguments='{"n":2}'),
            ],
            TWO,
            id="no index, another id",
        ),
        pytest.param(
            [piece(0, name="tick", arguments=HEAD + TAIL), piece(0, name="tock", arguments='{"n":2}')],
            [("tick", {"n": 1}, None), ("tock", {"n": 2}, None)],
            id="another name after whole arguments",
        ),
        pytest.param(
            [piece(0, "c1", "tick", HEAD + TAIL), piece(0, "c2", None, "")], ONE, id="empty piece with another id"
        ),
        pytest.param(
            [piece(0, "c1", "tick", HEAD), piece(0, "c2", "tick", TAIL)],
            ONE,
            id="another id and the name in each piece",
        ),
        pytest.param([piece(n, "c1", "tick", HEAD + TAIL) for n in range(3)], ONE, id="whole call at several indexes"),
        pytest.param([piece(0, "c1", "tick"), piece(1, "c1", None, HEAD + TAIL)], ONE, id="arguments at another index"),
        pytest.param(
            [piece(0, "c1", "tick", HEAD + TAIL), piece(1, "c1", "tick", '{"n":2}')],
            [*ONE, ("tick", {"n": 2}, "c1")],
            id="one id for different calls",
        ),
        pytest.param(
            [piece(0, "c1", "tick", HEAD), piece(0, arguments=HEAD + ": "), piece(0, arguments=HEAD + ": 1}")],
            ONE,
            id="all arguments so far in each piece",
        ),
        pytest.param(
            [piece(id_="c1", name="tick", arguments="{}"), piece(name="tick", arguments=HEAD), piece(arguments=TAIL)],
            ONE,
            id="no index, empty object first",
        ),
        pytest.param(
            [piece(name="tick", arguments=HEAD + TAIL), piece(name="tick", arguments='{"n": 1}')],
            ONE_WITHOUT_ID,
            id="no index, whole call repeated with other blanks",
        ),
        pytest.param(
            [piece(0, "", "tick", text) for text in (HEAD + TAIL, SECOND)],
            TWO_WITHOUT_ID,
            id="different calls at index 0 without ids",
        ),
        pytest.param(
            [piece(0, "c1", "tick", HEAD + TAIL), piece(0, "c1", "tick", SECOND)],
            [*ONE, ("tick", {"n": 2}, "c1")],
            id="one id and index for different calls",
        ),
        pytest.param([piece(0, "c1", "tick", "")], [("tick", {}, "c1")], id="no arguments"),
        pytest.param([piece(0, "c1", "tick", None)], [("tick", {}, "c1")], id="null arguments"),
        pytest.param([piece(0, "c1", "tick", [])], [("tick", {}, "c1")], id="empty list as arguments"),
    ],
)
@pytest.mark.parametrize("together", [False, True], ids=["one per chunk", "all in one chunk"])
def test_pieces_of_calls_are_joined_to_the_calls_of_the_model(
    pieces: list[dict[str, Any]], expected: list[Any], *, together: bool
) -> None:
    if together and any(piece.get("index") is None for piece in pieces):
        return  # Pieces without an index in one chunk are different calls.
    answer = ChatAnswer("fake")
    deltas = read(answer, [chunk(*pieces), FINISH] if together else [*map(chunk, pieces), FINISH])
    assert calls(answer) == expected
    announced = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
    assert {(delta.index, delta.name) for delta in announced} == {(n, call[0]) for n, call in enumerate(expected)}


def test_call_that_is_streamed_again_at_another_index_is_made_once() -> None:
    answer = ChatAnswer("fake")
    pieces = [one for n in range(2) for one in (piece(n, "c1", "tick", ""), piece(n, arguments=HEAD + TAIL))]
    read(answer, [*map(chunk, pieces), chunk(piece(2, "c2", "tock", '{"n":2}')), FINISH])
    assert calls(answer) == TWO


def test_calls_without_ids_that_are_streamed_again_at_their_index_are_made_once() -> None:
    answer = ChatAnswer("fake")
    read(answer, [chunk(piece(0, "", "tick", text)) for text in (HEAD + TAIL, SECOND) * 2] + [FINISH])
    assert calls(answer) == TWO_WITHOUT_ID


def test_calls_without_index_in_one_chunk_are_different_calls() -> None:
    answer = ChatAnswer("fake")
    read(answer, [chunk(*[piece(name="tick", arguments='{"n":1}')] * 2), FINISH])
    assert calls(answer) == ONE_WITHOUT_ID * 2


def test_call_that_is_not_in_a_list_or_without_a_function_is_read() -> None:
    for call in (piece(0, "c1", "tick", '{"n":1}'), {"index": 0, "id": "c1", "name": "tick", "arguments": {"n": 1}}):
        answer = ChatAnswer("fake")
        read(answer, [{"choices": [{"delta": {"tool_calls": call}}]}, FINISH])
        assert calls(answer) == ONE


@pytest.mark.parametrize(
    "last",
    [
        {"choices": [], "usage": {"total_tokens": 18}},
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"total_tokens": 18}},
        {"choices": [{"delta": {}, "finish_reason": "stop", "usage": {"total_tokens": 18}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "x_groq": {"usage": {"total_tokens": 18}}},
    ],
    ids=["own chunk", "last chunk", "choice", "x_groq"],
)
@pytest.mark.parametrize("behind", [None, {}, {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}])
def test_usage_is_found_wherever_servers_report_it(last: dict[str, Any], behind: dict[str, Any] | None) -> None:
    answer = ChatAnswer("fake")
    read(answer, [chunk(content="Hello."), last, {"choices": [], "usage": behind}])
    assert answer.usage.total_tokens == 18


def test_counts_without_details_are_found_and_those_that_are_not_numbers_are_left_out() -> None:
    answer = ChatAnswer("fake")
    counts = {"prompt_tokens": math.inf, "completion_tokens": "7", "total_tokens": 18}
    read(answer, [chunk(content="Hello."), {"usage": {**counts, "cached_tokens": 4, "reasoning_tokens": 5}}])
    assert answer.usage == Usage(total_tokens=18, cached_input_tokens=4, reasoning_tokens=5)


@pytest.mark.parametrize("delta", [{"content": "I call it:"}, {"tool_calls": [piece(0, "c1", "tick", HEAD + TAIL)]}])
@pytest.mark.parametrize("word", ["MALFORMED_FUNCTION_CALL", "function_call_filter: UNEXPECTED_TOOL_CALL"])
def test_answer_whose_call_the_provider_could_not_read_is_none(delta: dict[str, Any], word: str) -> None:
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": word}]}
    with pytest.raises(ProviderBadAnswer, match="could not read the model's tool call") as caught:
        read(ChatAnswer("fake"), [chunk(**delta), last])
    assert caught.value.metadata["finish_reason"] == word


def test_answer_is_settled_once_it_has_a_finish_reason_and_nothing_follows() -> None:
    def event(content: str, finish: str | None) -> dict[str, Any]:
        return {"choices": [{"delta": {"content": content}, "finish_reason": finish}]}

    answer, states = ChatAnswer("fake"), []
    for given in (event("a", "null"), event("b", None), event("c", "stop"), event("d", None), event("", None)):
        answer.add(given)
        states.append((answer.is_finished, answer.is_settled))
    assert states == [(False, False), (False, False), (True, False), (True, False), (True, True)]


def test_legacy_function_call_is_a_call_and_not_one_more() -> None:
    legacy = [{"name": "tick", "arguments": HEAD}, {"arguments": TAIL}]
    answer = ChatAnswer("fake")
    read(answer, [*(chunk(function_call=given) for given in legacy), FINISH])
    assert calls(answer) == ONE_WITHOUT_ID
    both = ChatAnswer("fake")
    read(both, [chunk(piece(0, "c1", "tick", HEAD + TAIL), function_call=legacy[0]), chunk(function_call=legacy[1])])
    assert calls(both) == ONE


@pytest.mark.parametrize("delta", [{}, {"delta": {}}, {"delta": None}], ids=["no delta", "empty", "null"])
def test_whole_message_behind_its_pieces_adds_only_what_is_missing(delta: dict[str, Any]) -> None:
    call = piece(0, "c1", "tick", '{"n":1}')
    message = {"reasoning_content": "So.", "content": "Hello.", "tool_calls": [call], "audio": "x"}
    last = {"id": "x", "choices": [{"finish_reason": "tool_calls", "message": message, **delta}]}
    answer = ChatAnswer("fake")
    read(answer, [chunk(content="Hel"), chunk(content="lo."), chunk(call), last])
    assert [part.text for part in answer.content] == ["Hello.", "So."]  # type: ignore[union-attr]
    assert calls(answer) == ONE
    assert '"audio":"x"' in str(answer.carried)


def test_start_of_a_block_that_its_first_delta_repeats_is_read_once() -> None:
    def delta(text: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}

    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Ha"}}
    answer = MessagesAnswer("fake")
    read(answer, [start, delta("Ha"), delta("Ha"), delta("!")])
    assert [part.text for part in answer.content] == ["HaHa!"]  # type: ignore[union-attr]


def test_equal_calls_of_a_whole_body_are_all_made() -> None:
    body = {"choices": [{"message": {"tool_calls": [piece(id_="c1", name="tick", arguments='{"n":1}')] * 2}}]}
    answer = ChatAnswer("fake")
    read(answer, [body], is_done=False)
    assert calls(answer) == ONE * 2


def test_only_the_first_of_several_choices_is_read() -> None:
    def of(index: int, **delta: Any) -> dict[str, Any]:
        return {"id": "x", "choices": [{"index": index, "delta": delta, "finish_reason": None}]}

    answer = ChatAnswer("fake")
    events = [
        of(0, content="One"),
        of(1, content="Two"),
        of(0, tool_calls=[piece(0, "c1", "tick", '{"n":1}')]),
        of(1, tool_calls=[piece(0, "c1", "tick", '{"n":1}')]),
        of(1, tool_calls=[piece(1, "c2", "tick", "{}")]),
        {"id": "x", "choices": [{"index": n, "delta": {}, "finish_reason": "tool_calls"} for n in (1, 0)]},
    ]
    read(answer, events)
    assert [part.text for part in answer.content] == ["One"]  # type: ignore[union-attr]
    assert calls(answer) == ONE


@pytest.mark.parametrize(
    ("given", "settled"),
    [
        ("", "{}"),
        (" \n", "{}"),
        ("null", "{}"),
        ("[]", "{}"),
        ("{}{}", "{}"),
        ('{}{"a": 1}', '{"a": 1}'),
        ('{"a": 1} {"a": 1}', '{"a": 1}'),
        ('{"a": 1}{"a": 2}', '{"a": 1}{"a": 2}'),
        ('{"a": "}{"}', '{"a": "}{"}'),
        ('{"a": 1', '{"a": 1'),
        ("no JSON", "no JSON"),
        ("{}" * 100, "{}" * 100),
    ],
)
def test_arguments_that_were_sent_twice_are_taken_once(given: str, settled: str) -> None:
    assert settled_arguments(given) == settled


def chat_call(number: int) -> list[Any]:
    return [chunk(piece(number, f"c{number}", "tick", "{}"))]


def response_call(number: int) -> list[Any]:
    item = {"type": "function_call", "call_id": f"c{number}", "name": "tick", "arguments": "{}"}
    return [{"type": "response.output_item.added", "output_index": number, "item": item}]


def message_call(number: int) -> list[Any]:
    block = {"type": "tool_use", "id": f"c{number}", "name": "tick", "input": {}}
    return [{"type": "content_block_start", "index": number, "content_block": block}]


def chat_piece(_: int, text: str) -> Any:
    return chunk(piece(0, arguments=text))


def response_piece(_: int, text: str) -> Any:
    return {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": text}


def message_piece(_: int, text: str) -> Any:
    return {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "input_json_delta", "partial_json": text},
    }


APIS = pytest.mark.parametrize(
    ("new", "call_of", "piece_of"),
    [
        (ChatAnswer, chat_call, chat_piece),
        (ResponsesAnswer, response_call, response_piece),
        (MessagesAnswer, message_call, message_piece),
    ],
    ids=["chat", "responses", "messages"],
)


@APIS
def test_call_beyond_the_bound_is_refused_when_it_begins(
    new: Callable[[str], StreamedAnswer], call_of: Callable[[int], list[Any]], piece_of: object
) -> None:
    answer = new("fake")
    for number in range(MAX_CALLS):
        for event in call_of(number):
            answer.add(event)
    with pytest.raises(ProviderBadAnswer, match="more than 128 tool calls"):
        answer.add(*call_of(MAX_CALLS))


@APIS
def test_bytes_beyond_the_bound_are_refused_when_they_arrive(
    new: Callable[[str], StreamedAnswer], call_of: Callable[[int], list[Any]], piece_of: Callable[[int, str], Any]
) -> None:
    answer, text = new("fake"), "ä" * (1 << 16)
    answer.add(*call_of(0))
    whole = (MAX_ANSWER_BYTES - 4) // (2 * len(text))
    for _ in range(whole):
        answer.add(piece_of(0, text))
    with pytest.raises(ProviderBadAnswer, match="more than 8,388,608 bytes"):
        answer.add(piece_of(0, text))


@APIS
def test_work_for_a_piece_does_not_grow_with_the_answer(
    new: Callable[[str], StreamedAnswer], call_of: Callable[[int], list[Any]], piece_of: Callable[[int, str], Any]
) -> None:
    def add(pieces: int) -> None:
        answer = new("fake")
        for number in range(MAX_CALLS):
            answer.add(*call_of(number))
        event = piece_of(0, 'x"')
        for _ in range(pieces):
            answer.add(event)

    require_linear(add)


@pytest.mark.parametrize("speaking", [("tick", "text"), ("tock", "text"), None])
@pytest.mark.parametrize("thinks", [False, True])
async def test_work_for_a_delta_does_not_grow_with_the_answer(
    speaking: tuple[str, str] | None, *, thinks: bool
) -> None:
    def take(pieces: int) -> None:
        message_id = new_id("message")
        stream = DeltaStream(message_id, str, lambda _: None, speaking, thinks_in_arguments=thinks)
        stream.take(ToolCallDelta(0, "tick", '{"thinking": "so", "text": "'))
        for _ in range(pieces):
            stream.take(ToolCallDelta(0, "tick", "x"))
        stream.flush()

    require_linear(take)


def require_linear(work: Callable[[int], None]) -> None:
    """Requires that sixteen times as many pieces take sixteen times as long, and not 256 times."""

    def seconds(pieces: int) -> float:
        began = time.process_time()
        work(pieces)
        return time.process_time() - began

    few, many = min(seconds(2_000) for _ in range(3)), seconds(32_000)
    assert many < 16 * 4 * few


def block(index: int, type_: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": type_, **fields}}


def block_piece(index: int, text: str) -> dict[str, Any]:
    return message_piece(0, text) | {"index": index}


def text_piece(index: int, text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


TICK, TOCK = {"id": "c1", "name": "tick", "input": {}}, {"id": "c2", "name": "tock", "input": {}}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param(
            [block(0, "tool_use", **TICK), block_piece(0, HEAD), block_piece(0, TAIL), stop(0)], ONE, id="documented"
        ),
        pytest.param([block(0, "tool_use", **TICK | {"input": {"n": 1}}), stop(0)], ONE, id="input in the start"),
        pytest.param(
            [block(0, "tool_use", **TICK | {"input": {"n": 1}}), block_piece(0, '{"n": 1}'), stop(0)],
            ONE,
            id="input in the start and in pieces",
        ),
        pytest.param(
            [block(0, "tool_use", **TICK), block(0, "tool_use", **TICK), block_piece(0, HEAD + TAIL), stop(0)],
            ONE,
            id="start repeated",
        ),
        pytest.param(
            [block(0, "tool_use", **TICK), block_piece(0, HEAD + TAIL), stop(0), block(0, "tool_use", **TICK), stop(0)],
            ONE,
            id="call repeated behind its end",
        ),
        pytest.param(
            [
                block(0, "tool_use", **TICK),
                block_piece(0, HEAD + TAIL),
                stop(0),
                block(0, "tool_use", **TOCK),
                block_piece(0, SECOND),
                stop(0),
            ],
            TWO,
            id="all blocks at index 0",
        ),
        pytest.param(
            [
                block(0, "tool_use", **TICK),
                block(1, "tool_use", **TOCK),
                block_piece(1, '{"n"'),
                block_piece(0, HEAD),
                block_piece(1, ":2}"),
                block_piece(0, TAIL),
                stop(1),
                stop(0),
            ],
            TWO,
            id="interleaved",
        ),
    ],
)
def test_blocks_of_messages_are_the_calls_of_the_model(events: list[Any], expected: list[Any]) -> None:
    answer = MessagesAnswer("fake")
    read(answer, [*events, {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}])
    assert calls(answer) == expected


def test_counts_of_the_start_of_a_message_are_kept_if_its_end_has_none() -> None:
    answer = MessagesAnswer("fake")
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 11, "output_tokens": 0}}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    read(answer, [start, text_piece(0, "A"), {**end, "usage": {"input_tokens": 0, "output_tokens": 7}}])
    assert answer.usage.total_tokens == 18


def test_texts_of_blocks_without_a_start_or_with_one_index_are_kept() -> None:
    answer = MessagesAnswer("fake")
    events = [text_piece(0, "A"), text_piece(0, "B"), stop(0), block(0, "text", text="C"), text_piece(0, "D"), stop(0)]
    read(answer, [*events, {"type": "message_stop"}], is_done=False)
    assert [part.text for part in answer.content] == ["AB", "CD"]  # type: ignore[union-attr]


def test_input_of_a_tool_of_the_provider_is_not_a_call() -> None:
    answer = MessagesAnswer("fake")
    events = [block(0, "server_tool_use", id="s", name="web_search", input={}), block_piece(0, '{"q":"x"}'), stop(0)]
    read(answer, [*events, *[text_piece(1, "Found."), {"type": "message_stop"}]])
    assert (answer.tool_calls, [part.text for part in answer.content]) == ((), ["Found."])  # type: ignore[union-attr]
    assert '"input":{"q":"x"}' in (answer.carried or "")


def item(number: int = 1, *, arguments: str = "", **fields: Any) -> dict[str, Any]:
    name = ("tick", "tock")[number - 1]
    return {"type": "function_call", "call_id": f"c{number}", "name": name, "arguments": arguments, **fields}


def added(index: object, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": given}


def done(index: object, given: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": given}


def item_piece(index: object, text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "response.function_call_arguments.delta", "output_index": index, "delta": text, **fields}


WHOLE, OTHER = item(arguments=HEAD + TAIL), item(2, arguments=SECOND)


@pytest.mark.parametrize(
    ("events", "output", "expected"),
    [
        pytest.param([added(0, item()), item_piece(0, HEAD + TAIL), done(0, WHOLE)], [WHOLE], ONE, id="documented"),
        pytest.param([], [WHOLE, OTHER], TWO, id="only the whole response"),
        pytest.param([done(0, WHOLE)], [], ONE, id="only the end of the item"),
        pytest.param([added(0, item()), item_piece(0, HEAD), item_piece(0, TAIL)], [], ONE, id="no end of the item"),
        pytest.param(
            [added(0, item()), {**item_piece(0, ""), "type": "response.function_call_arguments.done"}],
            [WHOLE],
            ONE,
            id="arguments in the whole response only",
        ),
        pytest.param(
            [
                added(0, item()),
                {
                    "type": "response.function_call_arguments.done",
                    "output_index": 0,
                    "arguments": HEAD + TAIL,
                },
            ],
            [],
            ONE,
            id="arguments in their end only",
        ),
        pytest.param([added(1, item()), item_piece(1, HEAD + TAIL), done(1, WHOLE)], [WHOLE], ONE, id="other numbers"),
        pytest.param([done(0, WHOLE), done(0, WHOLE)], [WHOLE], ONE, id="end repeated"),
        pytest.param(
            [one for n in range(2) for one in (added(n, item()), item_piece(n, HEAD + TAIL), done(n, WHOLE))],
            [WHOLE],
            ONE,
            id="call repeated at another index",
        ),
        pytest.param(
            [added(0, item(id="a")), item_piece(0, HEAD + TAIL, item_id="b"), done(0, {**WHOLE, "id": "c"})],
            [{**WHOLE, "id": "d"}],
            ONE,
            id="another item id in each event",
        ),
        pytest.param(
            [
                added(0, item()),
                item_piece(0, HEAD + TAIL),
                done(0, WHOLE),
                added(0, item(2)),
                item_piece(0, SECOND),
                done(0, OTHER),
            ],
            [WHOLE, OTHER],
            TWO,
            id="all items at index 0",
        ),
        pytest.param(
            [added(0, item()), item_piece(0, HEAD + TAIL), added(0, item(2)), item_piece(0, SECOND)],
            [WHOLE, OTHER],
            TWO,
            id="all items at index 0, without ends",
        ),
        pytest.param(
            [
                added(None, item(id="a")),
                added(None, item(2, id="b")),
                item_piece(None, SECOND, item_id="b"),
                item_piece(None, HEAD + TAIL, item_id="a"),
            ],
            [],
            TWO,
            id="no index, interleaved by item id",
        ),
        pytest.param([added(0, item(arguments="{}")), item_piece(0, HEAD + TAIL)], [], ONE, id="empty object first"),
    ],
)
def test_items_of_responses_are_the_calls_of_the_model(
    events: list[Any], output: list[Any], expected: list[Any]
) -> None:
    answer = ResponsesAnswer("fake")
    whole = {"object": "response", "status": "completed", "output": output}
    read(answer, [*events, {"type": "response.completed", "response": whole}])
    assert calls(answer) == expected
