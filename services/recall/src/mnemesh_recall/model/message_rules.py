"""The rules that a message must keep before it is stored, each broken one told by the field that breaks it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import is_id

from mnemesh_recall.model.messages import (
    ApprovalDecision,
    ContentPart,
    Deny,
    ImageFile,
    ImagePart,
    ImageUrl,
    InlineImage,
    Message,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    SummarizedReasoningPart,
    TextPart,
    ToolCall,
    ToolReturn,
)

MAX_TEXT_BYTES: Final = 1 << 20
MAX_IMAGE_BYTES: Final = 10 << 20
MAX_OPAQUE_BYTES: Final = 10 << 20
MAX_NAME_CHARACTERS: Final = 512
MAX_MESSAGES: Final = 1000

Problem = tuple[str, str]
"""The path of a field, and what is wrong with it."""

_object: Final = msgspec.json.Decoder(dict[str, Any])


def require_messages(messages: Sequence[Message], field: str, *, at_least: int = 0) -> None:
    """Refuses messages that may not be stored.

    Raises:
        InvalidArgument: naming the field, as in `messages[2].content[0].text`.
    """
    if len(messages) < at_least:
        raise InvalidArgument(f"{field} must not be empty.", field=field)
    if len(messages) > MAX_MESSAGES:
        raise InvalidArgument(f"{field} must be at most {MAX_MESSAGES} messages.", field=field)
    for index, message in enumerate(messages):
        require_message(message, f"{field}[{index}]")


def require_message(message: Message, field: str) -> None:
    """Refuses a message that may not be stored, naming the field under `field`."""
    for path, problem in _message(message):
        raise InvalidArgument(f"{field}.{path} {problem}.", field=f"{field}.{path}")


def require_text(text: str, field: str) -> None:
    """Refuses a text that may not be stored."""
    for path, problem in _text(text, field):
        raise InvalidArgument(f"{path} {problem}.", field=path)


def _message(message: Message) -> Iterator[Problem]:
    if not is_id(message.id, "message"):
        yield "id", "is not an id of the form message-<uuid4>"
    for index, part in enumerate(message.content):
        yield from _under(f"content[{index}]", _part(part))
    for index, call in enumerate(message.tool_calls):
        yield from _under(f"tool_calls[{index}]", _call(call))
    for index, answer in enumerate(message.tool_returns):
        yield from _under(f"tool_returns[{index}]", _return(answer))
    for index, decision in enumerate(message.approval_decisions):
        yield from _under(f"approval_decisions[{index}]", _decision(decision))
    yield from _id(message.approval_request_id, "message", "approval_request_id")
    yield from _id(message.step_id, "step", "step_id")
    yield from _id(message.run_id, "run", "run_id")
    yield from _id(message.group_id, "group", "group_id")
    for field in ("name", "otid", "sender_id", "model", "turn_id"):
        if (value := getattr(message, field)) is not None:
            yield from _name(value, field)


def _under(field: str, problems: Iterable[Problem]) -> Iterator[Problem]:
    return ((f"{field}.{path}", problem) for path, problem in problems)


def _part(part: ContentPart) -> Iterator[Problem]:
    match part:
        case TextPart(text, signature):
            yield from _text(text, "text.text")
            yield from _opaque(signature, "text.signature")
        case ImagePart():
            yield from _under("image", _image(part))
        case ReasoningPart(text, _, signature):
            yield from _text(text, "reasoning.text")
            yield from _opaque(signature, "reasoning.signature")
        case RedactedReasoningPart(data):
            yield from _opaque(data, "redacted_reasoning.data")
        case OmittedReasoningPart(signature):
            yield from _opaque(signature, "omitted_reasoning.signature")
        case SummarizedReasoningPart(id_, summaries, encrypted):
            yield from _name(id_, "summarized_reasoning.id")
            yield from _texts(summaries, "summarized_reasoning.summaries")
            yield from _opaque(encrypted, "summarized_reasoning.encrypted_content")


def _image(part: ImagePart) -> Iterator[Problem]:
    match part.source:
        case InlineImage(data, media_type):
            if len(data) > MAX_IMAGE_BYTES:
                yield "inline.data", "is larger than 10 MB"
            yield from _name(media_type, "inline.media_type")
        case ImageUrl(url):
            yield from _text(url, "url")
        case ImageFile(file_id):
            yield from _name(file_id, "file_id")
    if part.detail is not None:
        yield from _name(part.detail, "detail")


def _call(call: ToolCall) -> Iterator[Problem]:
    yield from _required_name(call.id, "id")
    yield from _required_name(call.name, "name")
    yield from _text(call.arguments, "arguments")
    try:
        _object.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError):
        yield "arguments", "is not a JSON object"
    if call.provider_id is not None:
        yield from _name(call.provider_id, "provider_id")


def _return(answer: ToolReturn) -> Iterator[Problem]:
    yield from _required_name(answer.tool_call_id, "tool_call_id")
    yield from _name(answer.name, "name")
    for index, part in enumerate(answer.content):
        yield from _under(f"content[{index}]", _part(part))
    yield from _texts(answer.stdout, "stdout")
    yield from _texts(answer.stderr, "stderr")


def _decision(decision: ApprovalDecision) -> Iterator[Problem]:
    yield from _required_name(decision.tool_call_id, "tool_call_id")
    match decision.decision:
        case ToolReturn():
            yield from _under("client_return", _return(decision.decision))
        case Deny(str(reason)):
            yield from _text(reason, "deny.reason")


def _texts(texts: Iterable[str], field: str) -> Iterator[Problem]:
    for index, text in enumerate(texts):
        yield from _text(text, f"{field}[{index}]")


def _text(text: str, field: str, most: int = MAX_TEXT_BYTES) -> Iterator[Problem]:
    # A character is at most four bytes: only long texts are encoded to be measured.
    if len(text) * 4 > most and len(text.encode()) > most:
        yield field, f"is longer than {most >> 20} MB"
    if "\0" in text:
        yield field, "holds a NUL character"


def _opaque(text: str | None, field: str) -> Iterator[Problem]:
    if text is not None:
        yield from _text(text, field, MAX_OPAQUE_BYTES)


def _name(text: str, field: str) -> Iterator[Problem]:
    if len(text) > MAX_NAME_CHARACTERS:
        yield field, f"is longer than {MAX_NAME_CHARACTERS} characters"
    if "\0" in text:
        yield field, "holds a NUL character"


def _required_name(text: str, field: str) -> Iterator[Problem]:
    if not text:
        yield field, "is required"
    yield from _name(text, field)


def _id(value: str | None, prefix: str, field: str) -> Iterator[Problem]:
    if value is not None and not is_id(value, prefix):
        yield field, f"is not an id of the form {prefix}-<uuid4>"
