"""Lines of the command line: whole in files and pipes, wrapped between words in a terminal."""

import io
import sys
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.agents.v1 import runs_pb2
from mnemesh_cli.display.error_text import error_text, plain_message
from mnemesh_cli.display.records import count_text, print_record
from mnemesh_cli.display.terminal import notice, print_error, print_labelled
from mnemesh_kit.errors import DeadlineExceeded, MnemeshError, Unavailable
from rich.text import Text

FAILED = "failed to connect to all addresses; last error: "
REFUSED = "Failed to connect to remote host"
WORDS = "one two three four five six seven eight nine ten eleven twelve"


class Screen(io.StringIO):
    """A stream that is a terminal of 40 columns, or none."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def screen(request: pytest.FixtureRequest) -> Screen:
    return Screen(is_terminal=request.param)


@pytest.fixture
def shown_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Screen], None]:
    """Returns a function that replaces stdout and stderr, which pytest replaces before each phase of a test."""
    for name, value in (("COLUMNS", "40"), ("LINES", "20"), ("TERM", "dumb"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)

    def replace(screen: Screen) -> None:
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(sys, "stderr", screen)

    return replace


@pytest.mark.parametrize("show", [notice, print_error])
def test_messages_of_the_program(
    screen: Screen, shown_on: Callable[[Screen], None], show: Callable[[str], None]
) -> None:
    shown_on(screen)
    show(WORDS)
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert " ".join(lines) == f"mnemesh: {WORDS}"
    assert (len(lines) == 1) == (not screen.isatty())
    assert all(len(line) <= 40 for line in lines) == screen.isatty()


def test_text_after_a_label(screen: Screen, shown_on: Callable[[Screen], None]) -> None:
    shown_on(screen)
    print_labelled(Text("10:00 user"), Text(WORDS))
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    if screen.isatty():
        assert lines == [
            "10:00 user one two three four five six",
            "           seven eight nine ten eleven",
            "           twelve",
        ]
    else:
        assert lines == [f"10:00 user {WORDS}"]


@pytest.mark.parametrize(
    ("details", "text"),
    [
        (
            f"{FAILED}UNKNOWN: ipv4:127.0.0.1:9: {REFUSED}: connect: Connection refused (111)",
            "127.0.0.1:9: Connection refused",
        ),
        (
            f"connections to all backends failing; last error: UNKNOWN: ipv4:127.0.0.1:9: {REFUSED}: Broken pipe",
            "127.0.0.1:9: Broken pipe",
        ),
        (
            f"{FAILED}UNKNOWN: ipv6:%5B::1%5D:9: {REFUSED}: connect: Network is unreachable (101)",
            "[::1]:9: Network is unreachable",
        ),
        (
            f"{FAILED}UNAVAILABLE: ipv4:127.0.0.1:80: connection attempt timed out before receiving SETTINGS",
            "127.0.0.1:80: it does not speak gRPC, or is too slow",
        ),
        (
            "DNS resolution failed for nowhere.example:50050: C-ares status is not ARES_SUCCESS qtype=A",
            "nowhere.example:50050: the host is not known",
        ),
        ("Received http2 header with status: 502", "it answers with the HTTP status 502 instead of gRPC"),
        ("recvmsg:Connection reset by peer", "the connection broke"),
        ("Socket closed", "the connection broke"),
        ("CLIENT: Sent message larger than max (9 vs. 4)", "a message is larger than 4 bytes"),
        ("Method not found!", "it does not know the call"),
        ("The agent ada is busy.", "The agent ada is busy."),
        ("x: handshake failed: y", "x: handshake failed: y"),
    ],
)
def test_texts_of_grpc_are_said_in_plain_words(details: str, text: str) -> None:
    assert plain_message(Unavailable(details)) == text


def test_a_call_that_takes_too_long_says_what_to_do() -> None:
    text = error_text(DeadlineExceeded("Deadline Exceeded"))
    assert text.startswith("The mesh did not answer in time.")
    assert "mnemesh doctor" in text
    assert "Deadline" not in text
    assert "DEADLINE" not in text


def test_a_record_is_shown_in_words(screen: Screen, shown_on: Callable[[Screen], None]) -> None:
    run = runs_pb2.Run(
        id="run-1",
        status=runs_pb2.RUN_STATUS_COMPLETED,
        create_time=Timestamp(seconds=1_700_000_000),
        total_duration=Duration(seconds=2),
        config=runs_pb2.RunConfig(assistant_messages=False),
    )
    shown_on(screen)
    print_record(run)
    created = datetime.fromtimestamp(1_700_000_000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    assert {line.strip() for line in screen.getvalue().splitlines()} == {
        *("id: run-1", "status: completed", "config:", "assistant messages: no"),
        *("total duration: 2 s", f"create time: {created}"),
    }


@pytest.mark.parametrize(
    ("provider", "advice"),
    [
        ("mine", "if the address is wrong, use `mnemesh providers update mine --base-url URL`"),
        ("openai", "check OPENAI_BASE_URL, or, if you registered the provider, use `mnemesh providers update openai"),
        ("", "use `mnemesh providers update NAME --base-url URL`"),
    ],
)
def test_the_advice_about_a_provider_that_does_not_answer_is_how_its_address_is_changed(
    provider: str, advice: str
) -> None:
    error = MnemeshError("It cannot be reached.", provider=provider)
    error.reason = "PROVIDER_UNAVAILABLE"
    assert advice in error_text(error)


@pytest.mark.parametrize(("count", "text"), [(0, "0 tools"), (1, "1 tool"), (2, "2 tools")])
def test_one_thing_is_counted_in_the_singular(count: int, text: str) -> None:
    assert count_text(count, "tool") == text
