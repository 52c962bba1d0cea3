"""Conversions of messages and of the fields that several requests have."""

import base64
import binascii
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from mnemesh.types.v1 import message_pb2
from mnemesh.types.v1.message_pb2 import ApprovalDecision, ContentPart, ImagePart, InlineImage, TextPart, ToolReturn

from mnemesh_gateway.errors import InvalidRequest, UnsupportedParameter
from mnemesh_gateway.http.body import JSON_ERRORS, json_problem, number_out_of_range
from mnemesh_gateway.usecases.chat import Delta, UserInput

T = TypeVar("T")

_KINDS: Final[Mapping[type, str]] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    list: "an array",
    dict: "an object",
    type(None): "null",
}

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_INSTRUCTIONS: Final = ("system", "developer")
_MAX_IMAGE_BYTES: Final = 10_485_760
_DETAILS: Final = ("auto", "low", "high")
_DATA_URL: Final = re.compile(r"data:(image/[\w.+-]+);base64,")
_EARLIER: Final = 20
"""How many earlier messages of the user are compared with those of known sessions."""
_ENCODE: Final = msgspec.json.Encoder(order="sorted").encode


def json_object(body: bytes) -> dict[str, Any]:
    """Returns the object of a body. Raises InvalidRequest."""
    try:
        value = msgspec.json.decode(body)
    except JSON_ERRORS as error:
        if "out of range" in str(error):
            raise number_out_of_range(body) from error
        raise InvalidRequest(f"The body cannot be read: {json_problem(error)}.", code="invalid_json") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"The body must be a JSON object, not {_kind(value)}.", code="invalid_json")
    return value


def of_type(value: Any, expected: type[T], param: str) -> T:
    """Returns a value of the expected type; an integer is a number, a boolean is not. Raises InvalidRequest."""
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        value = _number(value, param)
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise InvalidRequest(
            f"Invalid type for '{param}': expected {_KINDS[expected]}, but got {_kind(value)} instead.",
            param,
            "invalid_type",
        )
    if isinstance(value, str):
        _require_text(value, param)
    return value


def optional(body: Mapping[str, Any], name: str, expected: type[T], path: str = "") -> T | None:
    """Returns a field, or None if it is missing or null. Raises InvalidRequest."""
    value = body.get(name)
    return None if value is None else of_type(value, expected, joined(path, name))


def required(body: Mapping[str, Any], name: str, expected: type[T], path: str = "") -> T:
    """Returns a field. Raises InvalidRequest if it is missing or has another type."""
    param = joined(path, name)
    if name not in body:
        raise InvalidRequest(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
    return of_type(body[name], expected, param)


def one_of(value: str, allowed: Collection[str], param: str) -> str:
    """Returns a value if it is allowed. Raises InvalidRequest."""
    if value not in allowed:
        names = ", ".join(f"'{name}'" for name in allowed)
        raise InvalidRequest(f"Invalid value for '{param}': {value[:100]!r}. Supported values are: {names}.", param)
    return value


def between(value: float | None, low: float, high: float, param: str) -> None:
    """Raises InvalidRequest if a number is out of its range."""
    if value is not None and not low <= value <= high:
        raise InvalidRequest(f"Invalid value for '{param}': must be between {low:.10g} and {high:.10g}.", param)


def joined(path: str, name: str) -> str:
    """Returns the name of a field within another."""
    return f"{path}.{name}" if path else name


def _number(value: int, param: str) -> Any:
    try:
        return float(value)
    except OverflowError as error:
        raise InvalidRequest(f"Invalid value for '{param}': the number is out of range.", param) from error


def _require_text(value: str, param: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"Invalid value for '{param}': it contains a lone surrogate.", param) from error


def _kind(value: Any) -> str:
    return next((name for kind, name in _KINDS.items() if type(value) is kind), "another value")


def messages_from_json(messages: list[Any], results: list[Any], root: str = "messages") -> tuple[str | None, Delta]:
    """Returns the instructions, and what is new: what follows the last answer of the assistant.

    Args:
        messages: The value of `messages`.
        results: The value of `tool_results`, which are new as well.
        root: The name of the parameter that has the messages, for errors.

    Raises:
        InvalidRequest: A message has the wrong form. Its `field` is a path such as `messages[2].content`.
    """
    if not messages and not results:
        raise InvalidRequest(f"'{root}' must have at least one message.", root, "empty_array")
    last_answer, instructions = -1, []
    for index, message in enumerate(messages):
        path = f"{root}[{index}]"
        role = one_of(required(of_type(message, dict, path), "role", str, path), _ROLES, f"{path}.role")
        if role in _INSTRUCTIONS:
            instructions.append(_text_of(message, path))
        elif role == "assistant":
            last_answer = index
            _require_answer(message, path)
        elif message.get("content") is None:
            raise InvalidRequest(
                f"Missing required parameter: '{path}.content'.", f"{path}.content", "missing_required_parameter"
            )
    given = [_result(item, f"tool_results[{n}]") for n, item in enumerate(results)]
    delta = _delta(messages, last_answer, given, root)
    return ("\n\n".join(instructions) if instructions else None), delta


def _delta(messages: list[Any], last_answer: int, results: list[ApprovalDecision], root: str) -> Delta:
    digest = hashlib.sha256()
    inputs, earlier = [], []
    for index, message in enumerate(messages):
        if message["role"] in _INSTRUCTIONS:
            continue
        digest.update(_ENCODE(message))
        if index <= last_answer:
            if message["role"] == "user":
                earlier.append(digest.hexdigest()[:32])
            continue
        path = f"{root}[{index}]"
        if message["role"] == "tool":
            results.append(_result(message, path))
        else:
            content = parts_from_json(message["content"], f"{path}.content")
            if content:
                name = optional(message, "name", str, path)
                inputs.append(UserInput(content, digest.hexdigest()[:32], name, path))
    return Delta(tuple(_distinct(results)), tuple(inputs), last_answer >= 0, tuple(earlier[: -_EARLIER - 1 : -1]))


def _distinct(results: list[ApprovalDecision]) -> list[ApprovalDecision]:
    """Returns the results without repeats. Raises InvalidRequest if a call has two different ones."""
    known: dict[str, ApprovalDecision] = {}
    for result in results:
        if known.setdefault(result.tool_call_id, result) != result:
            raise InvalidRequest(f"The call {result.tool_call_id[:100]!r} has two different results.", "messages")
    return list(known.values())


def _result(message: Any, path: str) -> ApprovalDecision:
    message = of_type(message, dict, path)
    call_id = required(message, "tool_call_id", str, path)
    name = "content" if "content" in message or "output" not in message else "output"
    if name not in message:
        raise InvalidRequest(
            f"Missing required parameter: '{path}.content'.", f"{path}.content", "missing_required_parameter"
        )
    text = _joined_text(message[name], f"{path}.{name}")
    status = optional(message, "status", str, path)
    failed = status == "error"
    returned = ToolReturn(
        tool_call_id=call_id,
        status=message_pb2.TOOL_RETURN_STATUS_ERROR if failed else message_pb2.TOOL_RETURN_STATUS_SUCCESS,
        content=[_text_part(text)],
    )
    return ApprovalDecision(tool_call_id=call_id, client_return=returned)


def _text_part(text: str) -> ContentPart:
    return ContentPart(text=TextPart(text=text))


def _require_answer(message: Mapping[str, Any], path: str) -> None:
    calls = optional(message, "tool_calls", list, path) or []
    for index, call in enumerate(calls):
        required(of_type(call, dict, f"{path}.tool_calls[{index}]"), "id", str, f"{path}.tool_calls[{index}]")
    if message.get("content") is not None and not isinstance(message["content"], str | list):
        of_type(message["content"], str, f"{path}.content")


def _text_of(message: Mapping[str, Any], path: str) -> str:
    if "content" not in message:
        raise InvalidRequest(
            f"Missing required parameter: '{path}.content'.", f"{path}.content", "missing_required_parameter"
        )
    return _joined_text(message["content"], f"{path}.content")


def _joined_text(content: Any, path: str) -> str:
    """Returns the text of content that may have several parts, all of which must be text."""
    if isinstance(content, str):
        return of_type(content, str, path)
    texts = []
    for index, part in enumerate(parts_from_json(content, path)):
        if not part.HasField("text"):
            raise InvalidRequest(f"'{path}[{index}]' must be text.", f"{path}[{index}].type")
        texts.append(part.text.text)
    return "".join(texts)


def parts_from_json(content: Any, path: str) -> tuple[ContentPart, ...]:
    """Returns the parts of a message's content, without empty texts. Raises InvalidRequest."""
    if isinstance(content, str):
        return (_text_part(of_type(content, str, path)),) if content else ()
    if not isinstance(content, list):
        of_type(content, list, path)
    parts = [_part(of_type(item, dict, f"{path}[{n}]"), f"{path}[{n}]") for n, item in enumerate(content)]
    return tuple(part for part in parts if part.HasField("image") or part.text.text)


def _part(item: Mapping[str, Any], path: str) -> ContentPart:
    kind = required(item, "type", str, path)
    if kind in ("text", "input_text", "output_text"):
        return _text_part(required(item, "text", str, path))
    if kind == "image_url":
        image = item.get("image_url")
        if isinstance(image, str):
            return _image(image, None, f"{path}.image_url")
        image = required(item, "image_url", dict, path)
        return _image(
            required(image, "url", str, f"{path}.image_url"),
            optional(image, "detail", str, f"{path}.image_url"),
            f"{path}.image_url.url",
        )
    if kind == "input_image":
        url, detail = required(item, "image_url", str, path), optional(item, "detail", str, path)
        return _image(url, detail, f"{path}.image_url")
    if kind in ("input_audio", "file", "input_file", "refusal"):
        raise UnsupportedParameter(f"{path}.type", "Send text and images.", kind)
    raise InvalidRequest(
        f"Invalid value for '{path}.type': {kind[:100]!r}. Supported values are: 'text', 'image_url'.", f"{path}.type"
    )


def _image(url: str, detail: str | None, path: str) -> ContentPart:
    if detail is not None:
        one_of(detail, _DETAILS, f"{path.rpartition('.')[0]}.detail")
    if not url.startswith("data:"):
        if not url.startswith(("http://", "https://")):
            raise InvalidRequest(f"'{path}' must be an http or https URL, or a data URL.", path, "invalid_image_url")
        return ContentPart(image=ImagePart(url=url, detail=detail))
    head = _DATA_URL.match(url)
    if head is None:
        raise InvalidRequest(f"'{path}' must be a data URL of an image in base64.", path, "invalid_image_url")
    if (len(url) - head.end()) * 3 // 4 > _MAX_IMAGE_BYTES + 2:
        raise InvalidRequest(f"'{path}' must be at most 10 MB.", path, "image_too_large")
    try:
        data = base64.b64decode(url[head.end() :], validate=True)
    except binascii.Error as error:
        raise InvalidRequest(f"'{path}' is not valid base64.", path, "invalid_base64_image") from error
    return ContentPart(image=ImagePart(inline=InlineImage(data=data, media_type=head[1]), detail=detail))


def last_user_text(messages: Sequence[Any]) -> str:
    """Returns the text of the last message of the user, for the recognition of tasks; "" if there is none."""
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            texts = [part.get("text", "") for part in content or () if isinstance(part, dict)]
            return "".join(text for text in texts if isinstance(text, str))
    return ""
