"""The configuration of a run, and the callback at its end."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_json_object, require_line, require_optional_text, require_text

from mnemesh_orchestrator.model.agents import MAX_SYSTEM_PROMPT
from mnemesh_orchestrator.model.models import (
    ModelSettings,
    ResponseFormat,
    require_valid_format,
    require_valid_settings,
)

MAX_URL: Final = 2_000
MAX_ERROR: Final = 500
MAX_CLAIMS: Final = 100

_MAX_STEPS: Final = 1_000
_MAX_CLIENT_TOOLS: Final = 128
_MAX_CLIENT_SKILLS: Final = 256
_TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


_WAITS: Final = tuple(timedelta(seconds=seconds) for seconds in (30, 60, 300, 1_800, 1_800))
"""The times from one attempt to the next. The first is longer than a call takes."""
MAX_ATTEMPTS: Final = len(_WAITS)


@dataclass(frozen=True, slots=True)
class CallbackResult:
    """A URL and the result of the last call."""

    url: str
    sent_at: datetime | None = None
    status: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimedCallback:
    """A callback that is due, and that its caller is to call. `target_id` is the id of a run or of a batch."""

    target_id: str
    organization_id: str
    subject_id: str
    url: str
    attempt: int


def next_attempt(attempt: int, now: datetime) -> datetime:
    """Returns when a callback is due again whose attempt, with a number from 1, begins now."""
    return now + _WAITS[attempt - 1]


def is_final(attempt: int, status: int | None) -> bool:
    """Returns whether a callback is not called again after the result of an attempt."""
    return attempt >= MAX_ATTEMPTS or (status is not None and status < 500)


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
    """True if the otids of the input may be those of earlier messages. Then they are no idempotency keys."""
    parameters: str | None = None
    """A JSON object with parameters in the words of OpenAI's chat API."""
    forced_tool: str | None = None
    """The client tool that every model call must call."""
    requires_tool: bool = False
    """Every model call must call a tool."""


def valid_config(config: RunConfig, field: str = "config") -> RunConfig:
    """Returns the config of a run with the schemas of its client tools completed.

    Raises:
        InvalidArgument: A value breaks its rule. Metadata: field, such as `config.max_steps`.
    """
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
