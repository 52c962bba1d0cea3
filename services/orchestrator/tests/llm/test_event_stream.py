"""Streams of server-sent events, by the rules of the HTML standard, split at every byte."""

import pytest
from mnemesh_orchestrator.llm import transport
from mnemesh_orchestrator.llm.transport import EventStreamParser, EventTooLong, ServerEvent


def parsed(*pieces: bytes) -> list[ServerEvent]:
    parser = EventStreamParser()
    return [event for piece in pieces for event in parser.feed(piece)]


def said(*data: str) -> list[ServerEvent]:
    return [ServerEvent("", text) for text in data]


CASES = [
    pytest.param(b"data: a\n\ndata: b\n\n", said("a", "b"), id="LF"),
    pytest.param(b"data: a\r\n\r\ndata: b\r\n\r\n", said("a", "b"), id="CRLF"),
    pytest.param(b"data: a\r\rdata: b\r\r:", said("a", "b"), id="CR"),
    pytest.param(b"data: a\r\n\ndata: b\r\r\n", said("a", "b"), id="mixed ends of lines"),
    pytest.param(b"\xef\xbb\xbfdata: a\n\n", said("a"), id="byte order mark"),
    pytest.param(b"\xef\xbb\xbf\n\xef\xbb\xbfdata: a\n\ndata: b\n\n", said("b"), id="byte order mark in the middle"),
    pytest.param(b"data: {\ndata: \ndata:}\n\n", said("{\n\n}"), id="several lines of data"),
    pytest.param(b"data:a\n\ndata:  b\n\n", said("a", " b"), id="one space belongs to the field"),
    pytest.param(b"data\n\ndata:\n\ndata: \n\ndata\ndata\n\n", [], id="empty data"),
    pytest.param(b"event: ping\n\ndata: a\n\n", said("a"), id="an event without data has no name to give"),
    pytest.param(b"event: x\ndata: a\n\ndata: b\n\n", [ServerEvent("x", "a"), *said("b")], id="name"),
    pytest.param(b"event: x\nevent: y\ndata: a\n\n", [ServerEvent("y", "a")], id="last name"),
    pytest.param(b": comment\n:\n:data: no\ndata: a\n: more\n\n", said("a"), id="comments"),
    pytest.param(b"id: 7\nretry: 10\nretry: x\nwhat: ever\nwhat\ndata: a\n\n", said("a"), id="other fields"),
    pytest.param(b"id: 7\n\nretry: 1\n\n\n\n\ndata: a\n\n", said("a"), id="fields without data"),
    pytest.param(b"Data: no\n data: no\ndata : no\ndata: a\n\n", said("a"), id="names of fields are exact"),
    pytest.param(b"data: a:b: c\n\n", said("a:b: c"), id="colons"),
    pytest.param("data: ä\u2028\u0085\x0b\x0cß😀\n\n".encode(), said("ä\u2028\u0085\x0b\x0cß😀"), id="other breaks"),
    pytest.param(b"data: a\xff\xc3b\n\ndata: \xf0\x9f\n\n", said("a\ufffd\ufffdb", "\ufffd"), id="not UTF-8"),
    pytest.param(b"data: a\n\ndata: b\n", said("a"), id="an event that does not end"),
    pytest.param(b"data: a\n\nerror: b\n\n", [*said("a"), ServerEvent("error", "b")], id="a field of llama.cpp"),
    pytest.param(b"", [], id="nothing"),
]


@pytest.mark.parametrize(("stream", "events"), CASES)
def test_stream_is_parsed_by_the_standard_wherever_it_is_split(stream: bytes, events: list[ServerEvent]) -> None:
    assert parsed(stream) == events
    assert parsed(*(stream[n : n + 1] for n in range(len(stream)))) == events
    for cut in range(len(stream) + 1):
        assert parsed(stream[:cut], b"", stream[cut:]) == events


@pytest.mark.parametrize(
    ("stream", "last"),
    [
        (b"data: a\n\ndata: b", ServerEvent("", "b")),
        (b"event: x\ndata: b\n", ServerEvent("x", "b")),
        (b"data: a\n\n", None),
        (b"data: a\n\nevent: x\n", None),
        (b": comment", None),
    ],
)
def test_last_event_is_returned_apart_if_no_line_ends_it(stream: bytes, last: ServerEvent | None) -> None:
    parser = EventStreamParser()
    list(parser.feed(stream))
    assert parser.end() == last


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 60, b"data: xxxxxxxx\n" * 5, b": " + b"x" * 60])
def test_event_beyond_the_bound_is_refused_before_it_ends(monkeypatch: pytest.MonkeyPatch, stream: bytes) -> None:
    monkeypatch.setattr(transport, "MAX_EVENT_BYTES", 50)
    assert len(parsed(b"data: xxxxxxxx\n\n" * 20)) == 20
    for pieces in ([stream], [stream[n : n + 1] for n in range(len(stream))]):
        with pytest.raises(EventTooLong):
            parsed(*pieces)
