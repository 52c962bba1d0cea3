"""What callers send to a run: its messages and its configuration."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

import msgspec
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.text import require_json_object, require_line, require_no_nul, require_optional_text, require_text
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import ContentPart, ImagePart, Role, TextPart

from mnemesh_orchestrator.errors import OtidReused
from mnemesh_orchestrator.model.agents import MAX_SYSTEM_PROMPT
from mnemesh_orchestrator.model.models import ResponseFormat, require_valid_format, require_valid_settings

_MAX_MESSAGES: Final = 100
_MAX_TEXT_BYTES: Final = 1_048_576
_MAX_IMAGE_BYTES: Final = 10_485_760
_MAX_ID: Final = 512
_ROLES: Final = frozenset({Role.USER, Role.SYSTEM, Role.ASSISTANT})
SHOWN_ROLES: Final = frozenset({Role.USER, Role.SYSTEM})
"""The roles of the input messages that are events of their run. A stream of events has the agent's words only."""


@dataclass(frozen=True, slots=True)
class InputMessage:
    """A message that a client sends. It becomes a stored message when its step is committed."""

    content: tuple[ContentPart, ...]
    role: Role = Role.USER
    name: str | None = None
    otid: str | None = None
    sender_id: str | None = None
    group_id: str | None = None


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message as its client sent it: the client's id, and hashes of the message and of the whole input."""

    otid: str | None
    message_hash: str
    input_hash: str


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A message with an otid that a run has, with the hashes of the message and of the whole input."""

    run_id: str
    message_hash: str
    input_hash: str


def sent_messages(messages: Sequence[InputMessage]) -> tuple[SentMessage, ...]:
    """Returns an input as a repeated request is recognised by it; empty if no message has an otid."""
    if not any(message.otid for message in messages):
        return ()
    hashes = [_hash(message) for message in messages]
    whole = hashlib.sha256("".join(hashes).encode()).hexdigest()[:32]
    return tuple(SentMessage(message.otid, hash_, whole) for message, hash_ in zip(messages, hashes, strict=True))


def _hash(message: InputMessage) -> str:
    return hashlib.sha256(msgspec.json.encode(message)).hexdigest()[:32]


def repeated_run_id(sent: Sequence[SentMessage], known: Mapping[str, KnownMessage]) -> str | None:
    """Returns the id of the run that has the whole input, or None if it has none of the messages.

    Args:
        sent: The input.
        known: The messages with these otids that runs of the conversation have, by otid.

    Raises:
        OtidReused: A run has some of the messages and not the others, or has an otid with other content.
    """
    first = next((known[item.otid] for item in sent if item.otid is not None and item.otid in known), None)
    if first is None:
        return None
    for index, item in enumerate(sent):
        field, run_id = f"messages[{index}]", first.run_id
        found = known.get(item.otid) if item.otid else None
        if found is None and (item.otid or first.input_hash != item.input_hash):
            raise OtidReused(
                f"{field} is new, and another message of the request was sent before. Send the new messages alone.",
                field=field,
                run_id=run_id,
            )
        if found is not None and found.run_id != run_id:
            raise OtidReused(
                f"{field}.otid belongs to another run than the messages before it. Send each input as it was sent.",
                field=f"{field}.otid",
                run_id=found.run_id,
            )
        if found is not None and found.message_hash != item.message_hash:
            raise OtidReused(
                f"{field}.otid was used before with other content. Use a new one.",
                field=f"{field}.otid",
                run_id=run_id,
            )
    return first.run_id


def require_valid_inputs(
    messages: Sequence[InputMessage], field: str = "messages", *, min_messages: int = 0
) -> tuple[InputMessage, ...]:
    """Returns the messages that a client sends if each of their parts can be stored, without empty texts beside others.

    Args:
        messages: The messages, in order.
        field: The path of the messages in the request.
        min_messages: The least number of messages.
    """
    if len(messages) < min_messages:
        raise InvalidArgument(f"{field} must have at least {min_messages} message.", field=field)
    if len(messages) > _MAX_MESSAGES:
        raise InvalidArgument(f"{field} must have at most {_MAX_MESSAGES} messages.", field=field)
    messages = [_require_valid_input(message, f"{field}[{index}]") for index, message in enumerate(messages)]
    otids: set[str] = set()
    for index, message in enumerate(messages):
        if message.otid and message.otid in otids:
            path = f"{field}[{index}].otid"
            raise InvalidArgument(f"{path} must differ from the otids of the other messages.", field=path)
        otids.add(message.otid or "")
    return tuple(messages)


def _require_valid_input(message: InputMessage, field: str) -> InputMessage:
    if message.role not in _ROLES:
        raise InvalidArgument(f"{field}.role must be USER, SYSTEM or ASSISTANT.", field=f"{field}.role")
    if not message.content:
        raise InvalidArgument(f"{field}.content must have at least one part.", field=f"{field}.content")
    # Front ends send an empty text before an image that has no words.
    is_empty = [isinstance(part, TextPart) and not part.text for part in message.content]
    for index, part in enumerate(message.content):
        if not is_empty[index] or all(is_empty):
            require_valid_part(part, f"{field}.content[{index}]")
    for name in ("name", "otid", "sender_id"):
        require_optional_text(getattr(message, name), f"{field}.{name}", max_chars=_MAX_ID)
    if message.group_id is not None:
        require_id(message.group_id, "group", f"{field}.group_id")
    if not any(is_empty):
        return message
    return replace(
        message, content=tuple(part for part, empty in zip(message.content, is_empty, strict=True) if not empty)
    )


def require_valid_part(part: ContentPart, field: str) -> None:
    """Refuses a part that a client cannot send. Raises InvalidArgument."""
    match part:
        case TextPart(text):
            if not text:
                raise InvalidArgument(f"{field}.text must not be empty.", field=field)
            if len(text) > _MAX_TEXT_BYTES or len(text.encode(errors="replace")) > _MAX_TEXT_BYTES:
                raise InvalidArgument(f"{field}.text must be at most 1 MB.", field=field)
            require_no_nul(text, field)
        case ImagePart(data=bytes() as data) if len(data) > _MAX_IMAGE_BYTES:
            raise InvalidArgument(f"{field}.image must be at most 10 MB.", field=field)
        case ImagePart(data=None, url=None):
            raise InvalidArgument(f"{field}.image must have data or a URL.", field=field)
        case ImagePart():
            return
        case _:
            raise InvalidArgument(f"{field} must be text or an image.", field=field)


MAX_URL: Final = 2_000
MAX_ERROR: Final = 500
MAX_CLAIMS: Final = 100

_MAX_STEPS: Final = 1_000
_MAX_CLIENT_TOOLS: Final = 128
_MAX_CLIENT_SKILLS: Final = 256
_TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class CallbackResult:
    """A URL and the result of the last call."""

    url: str
    sent_at: datetime | None = None
    status: int | None = None
    error: str | None = None


def require_callback_url(url: str | None, field: str) -> None:
    """Raises InvalidArgument if a callback has a URL that cannot be called."""
    if url is not None and (len(url) > MAX_URL or not _is_web_url(url)):
        raise InvalidArgument(
            f"{field} must be an http or https URL of at most {MAX_URL:,} characters without credentials.", field=field
        )


def _is_web_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_usable and parts.username is None and url.isascii() and url.isprintable() and " " not in url


class OnBusy(StrEnum):
    """The reaction to another run that holds the conversation: wait for it, or reject the request."""

    WAIT = "wait"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the client runs. `parameters` is a JSON schema of type object, as text."""

    name: str
    parameters: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class ClientSkill:
    """A skill of the client's environment. `location` is where the client has its instructions."""

    name: str
    description: str
    location: str


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The configuration of a run. It is stored with the run."""

    max_steps: int = 50
    stream_tokens: bool = False
    include_events: tuple[str, ...] = ()
    override_model: str | None = None
    override_system: str | None = None
    include_compaction_events: bool = False
    assistant_messages: bool = True
    assistant_tool_name: str = "send_message"
    assistant_tool_argument: str = "message"
    on_busy: OnBusy = OnBusy.WAIT
    metadata: str | None = None
    keepalive_seconds: int = 30
    client_tools: tuple[ClientTool, ...] = ()
    response_format: ResponseFormat | None = None
    """The response format of this run; None takes the agent's."""
    model_settings: ModelSettings | None = None
    """Settings that replace those of the agent and of the conversation."""
    client_skills: tuple[ClientSkill, ...] = ()
    callback_url: str | None = None
    """The URL that is called when the run has ended."""
    otids_repeat: bool = False
    """True if the otids of the input may be those of earlier messages. Then they are not idempotency keys."""
    parameters: str | None = None
    """A JSON object with parameters in the words of OpenAI's chat API."""
    forced_tool: str | None = None
    """The client tool that every model call must call."""
    requires_tool: bool = False
    """Every model call must call a tool."""


def valid_config(config: RunConfig, field: str = "config") -> RunConfig:
    """Returns the config of a run with the schemas of its client tools completed."""
    if not 1 <= config.max_steps <= _MAX_STEPS:
        raise InvalidArgument(f"{field}.max_steps must be between 1 and {_MAX_STEPS}.", field=f"{field}.max_steps")
    require_keepalive(config.keepalive_seconds, f"{field}.keepalive_seconds")
    require_optional_text(config.override_system, f"{field}.override_system", max_chars=MAX_SYSTEM_PROMPT)
    if config.metadata is not None:
        require_json_object(config.metadata, f"{field}.metadata")
    if config.response_format is not None:
        require_valid_format(config.response_format, f"{field}.response_format")
    if config.model_settings is not None:
        require_valid_settings(config.model_settings, f"{field}.model_settings")
    if config.parameters is not None:
        require_json_object(config.parameters, f"{field}.parameters")
    if config.forced_tool is not None and config.forced_tool not in {tool.name for tool in config.client_tools}:
        raise InvalidArgument(f"{field}.forced_tool must be one of client_tools.", field=f"{field}.forced_tool")
    _require_valid_skills(config.client_skills, f"{field}.client_skills")
    require_callback_url(config.callback_url, f"{field}.callback_url")
    return replace(config, client_tools=_valid_tools(config.client_tools, f"{field}.client_tools"))


def require_keepalive(seconds: int, field: str) -> int:
    """Returns the seconds between two signs of life of a stream. Raises InvalidArgument if they are not positive."""
    if seconds < 1:
        raise InvalidArgument(f"{field} must be at least 1.", field=field)
    return seconds


def _require_valid_skills(skills: Sequence[ClientSkill], field: str) -> None:
    if len(skills) > _MAX_CLIENT_SKILLS:
        raise InvalidArgument(f"{field} must have at most {_MAX_CLIENT_SKILLS} skills.", field=field)
    for index, skill in enumerate(skills):
        path = f"{field}[{index}]"
        require_text(skill.name, f"{path}.name", max_chars=200)
        require_line(skill.name, f"{path}.name")
        require_optional_text(skill.description, f"{path}.description", max_chars=4_000)
        require_line(skill.location, f"{path}.location", max_chars=1_000)


def _valid_tools(tools: Sequence[ClientTool], field: str) -> tuple[ClientTool, ...]:
    if len(tools) > _MAX_CLIENT_TOOLS:
        raise InvalidArgument(f"{field} must have at most {_MAX_CLIENT_TOOLS} tools.", field=field)
    by_name: dict[str, ClientTool] = {}
    for index, tool in enumerate(tools):
        path = f"{field}[{index}]"
        if not _TOOL_NAME.fullmatch(tool.name):
            raise InvalidArgument(f'{path}.name must have 1 to 64 letters, digits, "_" or "-".', field=f"{path}.name")
        if tool.name in by_name:
            raise InvalidArgument(f"{path}.name must differ from the names of the other tools.", field=f"{path}.name")
        schema = json.loads(require_json_object(tool.parameters or "{}", f"{path}.parameters"))
        if schema.get("type", "object") != "object" or not isinstance(schema.get("properties", {}), dict):
            raise InvalidArgument(f"{path}.parameters must be a schema of an object.", field=f"{path}.parameters")
        complete = {"type": "object", "properties": {}, **schema}
        by_name[tool.name] = replace(tool, parameters=json.dumps(complete, ensure_ascii=False))
    return tuple(by_name.values())
