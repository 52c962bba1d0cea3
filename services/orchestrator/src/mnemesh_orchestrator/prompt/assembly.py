"""What a model sees: the JSON envelopes of messages, and the system message from a template, exact to the byte."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, tzinfo
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import structlog
from mnemesh_kit.errors import NotFound
from mnemesh_types.agents import SystemPrompt
from mnemesh_types.blocks import Block
from mnemesh_types.messages import Message, ToolStatus

from mnemesh_orchestrator.model.agents import MAX_SYSTEM_PROMPT, Agent
from mnemesh_orchestrator.model.core_memory import CoreMemory
from mnemesh_orchestrator.model.files import Directories, Directory, DirectoryFile, listed_files
from mnemesh_orchestrator.model.inputs import ClientSkill

NON_USER_MSG_PREFIX: Final = "[This is an automated system message hidden from the user] "
TIME_FORMAT: Final = "%Y-%m-%d %I:%M:%S %p %Z%z"

_dumps: Final = json.JSONEncoder(ensure_ascii=False).encode
_ENVELOPE: Final = re.compile(r'\{\s*"type"\s*:\s*"(?:heartbeat|login|system_alert|user_message)"')
_STATUS: Final = {ToolStatus.SUCCESS: "OK", ToolStatus.ERROR: "Failed"}


def package_user_message(text: str, created_at: datetime, time_zone: str, name: str | None = None) -> str:
    """Packages a user message with the agent's local time, and the speaker's name if it is known."""
    envelope = {"type": "user_message", "message": text, "time": local_time(created_at, time_zone)}
    return _dumps(envelope if name is None else {**envelope, "name": name})


def package_tool_return(status: ToolStatus, text: str, created_at: datetime, time_zone: str) -> str:
    """Packages the result of a tool."""
    return _dumps({"status": _STATUS[status], "message": text, "time": local_time(created_at, time_zone)})


def plain_user_message(text: str, created_at: datetime, time_zone: str, name: str | None = None) -> str:
    """Returns a user message as plain text. One that contains the envelope of an event is packaged nevertheless."""
    if _ENVELOPE.search(text):
        return package_user_message(text, created_at, time_zone, name)
    return text if name is None else f"{name}: {text}"


def plain_tool_return(status: ToolStatus, text: str) -> str:
    """Returns the result of a tool as plain text."""
    return f"Error: {text}" if status is ToolStatus.ERROR and not text.startswith("Error") else text


def time_of_last_message(created_at: datetime, time_zone: str) -> str:
    """Returns the line of the system message that replaces the times in envelopes."""
    return f"The last message of the user was sent at {local_time(created_at, time_zone)}."


def heartbeat(reason: str, now: datetime, time_zone: str) -> str:
    """Returns the event that gives control back to the model. `reason` has no prefix that marks it as automated."""
    return _dumps({"type": "heartbeat", "reason": NON_USER_MSG_PREFIX + reason, "time": local_time(now, time_zone)})


def login_event(now: datetime, time_zone: str, last_login: str = "Never (first login)") -> str:
    """Returns the event that a new agent's window starts with."""
    return _dumps({"type": "login", "last_login": last_login, "time": local_time(now, time_zone)})


def system_alert(message: str, now: datetime, time_zone: str) -> str:
    """Returns a message of the system to the model, such as the summary of a compaction."""
    return _dumps({"type": "system_alert", "message": message, "time": local_time(now, time_zone)})


def local_time(moment: datetime, time_zone: str) -> str:
    """Returns an instant in the agent's zone, such as "2026-01-20 02:13:45 PM PST-0800"."""
    return moment.astimezone(_zone(time_zone)).strftime(TIME_FORMAT)


@lru_cache(maxsize=1024)
def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # Zones are checked where they enter the system. A zone that this host does not know must not break an agent:
        # the rendered time says that it is UTC.
        return UTC


def senders_of(messages: Iterable[Message]) -> tuple[str | None, ...]:
    """Returns the sender of each message that a user sent; None for one without. Events have no sender."""
    return tuple(message.sender_id for message in messages if message.is_from_user)


_TAGS: Final = (
    *("memory_blocks", "description", "metadata", "warning", "value"),
    *("tool_usage_rules", "tool_rule", "memory_metadata", "available_skills"),
    *("directories", "directory", "file_limits", "file", "instructions"),
)

CORE_MEMORY: Final = "{CORE_MEMORY}"
"""The marker in a template that memory replaces."""

_LINE_NUMBER_WARNING: Final = (
    "# NOTE: Line numbers shown below (with arrows like '1→') are to help during editing. "
    "Do NOT include line number prefixes in your memory edit tool calls."
)
_RULES_INTRODUCTION: Final = (
    "The constraints below say which tools you may call, and when. They must be followed: a call against one of them "
    "is refused. A single response may contain multiple tool calls."
)
_METADATA_OPEN: Final = "<memory_metadata>\n"
_METADATA_CLOSE: Final = "\n</memory_metadata>"
_METADATA_LINES: Final = re.compile(
    r"(?:(?P<identity>- AGENT_ID: [^\n]+\n- CONVERSATION_ID: [^\n]+)\n)?"
    r"- (System prompt last recompiled|The current system date is): [^\n]+"
    r"(\n- Memory blocks were last modified: [^\n]+)?"
    r"\n- -?\d+ previous messages [^\n]+"
    r"(\n- \d+ total memories [^\n]+)?"
    r"(\n- Available archival memory tags: [^\n]+)?"
)

DIRECTORIES_OPENING: Final = "\n\n<directories>\n"
DIRECTORIES_CLOSING: Final = "</directories>"
CITATIONS: Final = (
    "\nCite what you take from a file with its name and lines, in this form: [folder/file.pdf:12-15] or "
    "[folder/notes.md:7]."
)
_READY: Final = frozenset({"completed", "embedding"})

_INTRODUCTION: Final = (
    "The client has these skills: instructions for tasks, each at a location. "
    "Read the instructions of a skill before you do what it describes."
)


def neutral(text: str, *names: str) -> str:
    """Returns a text as it is shown inside a section.

    Args:
        text: a text of any author.
        names: further tags that it must not close, such as the label of its block.
    """
    return _closing(names).sub(r"<\\", text) if "<" in text else text


def restored(text: str, *names: str) -> str:
    """Returns the text that `neutral` showed as this one."""
    return _neutralized(names).sub("<", text) if "<\\" in text else text


@lru_cache(maxsize=1024)
def _closing(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(r"<" + _rest(names), re.IGNORECASE)


@lru_cache(maxsize=1024)
def _neutralized(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(r"<\\" + _rest(names), re.IGNORECASE)


def _rest(names: tuple[str, ...]) -> str:
    return rf"(?=\\*\s*/\s*(?:{'|'.join(map(re.escape, (*_TAGS, *names)))})(?![\w-]))"


def memory_section(
    core_memory: CoreMemory, rules_prompt: str, directories: str = "", *, numbered: bool, show_blocks: bool
) -> str:
    """Returns the part of the system message about core memory, tool rules and files.

    Args:
        core_memory: the blocks in their order.
        rules_prompt: the rules as sentences, from `RulesSolver.prompt`; "" omits their section.
        directories: the section about files, from `directories_section`.
        numbered: whether lines of values have numbers, with a warning not to repeat them.
        show_blocks: whether blocks are shown at all.
    """
    blocks = _blocks_section(core_memory.blocks, numbered) if show_blocks else ""
    if not rules_prompt:
        return f"{blocks}{directories}"
    return f"{blocks}\n\n<tool_usage_rules>\n{_RULES_INTRODUCTION}\n\n{rules_prompt}\n</tool_usage_rules>{directories}"


def identity_lines(agent: Agent, conversation_id: str) -> str:
    """Returns the lines of metadata that name the agent and the conversation, which is "default" for its own."""
    name = "default" if conversation_id == agent.default_conversation_id else conversation_id
    return f"- AGENT_ID: {agent.id}\n- CONVERSATION_ID: {name}"


def metadata_section(
    identity: str,
    now_local_date: date,
    last_modified: datetime | None,
    previous_messages: int,
    archival_count: int,
    tags: Sequence[str],
) -> str:
    """Returns the part of the system message about the memory that it does not show.

    Args:
        identity: the lines that name the agent and the conversation, from `identity_lines`.
        now_local_date: the current date of the agent. It has no time, so that the text stays the same all day.
        last_modified: the last change of core memory in the agent's time zone; None omits the line.
        previous_messages: the number of messages in recall that are not in the window.
        archival_count: the number of passages in the agent's archives; 0 omits the line.
        tags: the tags in use there; an empty sequence omits the line.
    """
    lines = [
        identity,
        f"- System prompt last recompiled: {now_local_date:%B %d, %Y}",
    ]
    if last_modified is not None:
        lines.append(f"- Memory blocks were last modified: {last_modified.strftime(TIME_FORMAT)}")
    lines.append(
        f"- {previous_messages} previous messages between you and the user are stored in recall memory "
        "(use tools to access them)"
    )
    if archival_count > 0:
        lines.append(
            f"- {archival_count} total memories you created are stored in archival memory (use tools to access them)"
        )
    if tags:
        names = ", ".join(" ".join(tag.split()) for tag in tags)
        lines.append(f"- Available archival memory tags: {neutral(names)}")
    return _METADATA_OPEN + "\n".join(lines) + _METADATA_CLOSE


def compose(template: str, memory: str, metadata: str) -> str:
    """Returns the whole system message.

    Memory and metadata replace {CORE_MEMORY} in the template, or follow it if it has no such marker. If the marker
    occurs several times, only the first is replaced, so that no section occurs twice. All other braces stay unchanged.
    """
    head, tail = _around_memory(template)
    return f"{head}{memory}\n\n{metadata}{tail}"


def shows(system_text: str, template: str, memory: str, identity: str) -> bool:
    """Returns whether a system message shows this memory in this template, whatever its counts and dates are.

    A message that names another agent or conversation, as that of an imported agent, does not. Those of earlier
    releases name none.

    Blocks hold any text, including our own tags, so nothing is searched for inside them. The message must begin with
    the output of `compose` up to the metadata and end with its output after it, and only lines of metadata may lie
    between. The last condition detects a message whose memory merely begins with this one: it would have another
    section there, and no line of metadata is empty or a tag.
    """
    head, tail = _around_memory(template)
    before = f"{head}{memory}\n\n{_METADATA_OPEN}"
    after = f"{_METADATA_CLOSE}{tail}"
    if len(system_text) < len(before) + len(after):
        return False
    if not (system_text.startswith(before) and system_text.endswith(after)):
        return False
    found = _METADATA_LINES.fullmatch(system_text, len(before), len(system_text) - len(after))
    return found is not None and found["identity"] in (None, identity)


def sections(system_text: str) -> tuple[str, str, str]:
    """Returns the sections of a system message about core memory, tool rules and other memory; "" if one is missing.

    This is for display. Blocks may hold our own tags, so the outermost ones are used.
    """
    end = system_text.rfind(_METADATA_CLOSE)
    start = system_text.rfind(_METADATA_OPEN, 0, max(end, 0))
    metadata = system_text[start : end + len(_METADATA_CLOSE)] if start >= 0 else ""
    before = system_text[:start] if start >= 0 else system_text
    blocks = _between(before, "<memory_blocks>\n", "\n</memory_blocks>")
    rules = before.rfind("\n\n<tool_usage_rules>\n")
    after = before[rules:] if rules >= 0 and "\n</memory_blocks>" not in before[rules:] else ""
    return blocks, _between(after, "<tool_usage_rules>\n", "\n</tool_usage_rules>"), metadata


def _between(text: str, opening: str, closing: str) -> str:
    start, end = text.find(opening), text.rfind(closing)
    return text[start : end + len(closing)] if 0 <= start < end else ""


def _around_memory(template: str) -> tuple[str, str]:
    head, marker, tail = template.partition(CORE_MEMORY)
    return (head, tail.replace(CORE_MEMORY, "")) if marker else (f"{template}\n\n", "")


def _blocks_section(blocks: Sequence[Block], numbered: bool) -> str:
    if not blocks and not numbered:
        return ""
    rendered = "\n".join(_block(block, numbered) for block in blocks)
    return (
        "<memory_blocks>\nThe following memory blocks are currently engaged in your core memory unit:\n\n"
        f"{rendered}\n</memory_blocks>"
    )


def _block(block: Block, numbered: bool) -> str:
    read_only = "- read_only=true\n" if block.read_only else ""
    text = neutral(block.value, block.label)
    value = _numbered(text) if numbered else f"{text}\n"
    warning = f"<warning>\n{_LINE_NUMBER_WARNING}\n</warning>\n" if numbered else ""
    return (
        f"<{block.label}>\n"
        f"<description>\n{neutral(block.description or '', block.label)}\n</description>\n"
        f"<metadata>\n{read_only}- chars_current={len(block.value)}\n- chars_limit={block.limit}\n</metadata>\n"
        f"{warning}<value>\n{value}</value>\n"
        f"</{block.label}>\n"
    )


def _numbered(value: str) -> str:
    if not value:
        return ""
    return "".join(f"{number}→ {line}\n" for number, line in enumerate(value.split("\n"), 1))


def directories_section(directories: Directories, *, is_react: bool) -> str:
    """Returns the section about files; "" for an agent without folders.

    Args:
        directories: the folders of the agent.
        is_react: whether the agent has a type whose closed files have an empty value.
    """
    if not directories.directories:
        return ""
    parts = [
        DIRECTORIES_OPENING,
        "<file_limits>\n",
        f"- current_files_open={directories.open_files}\n",
        f"- max_files_open={directories.limits.max_files_open}\n",
        "</file_limits>\n",
    ]
    limit, listed = directories.limits.per_file_characters, listed_files(directories.limits)
    for directory in directories.directories:
        shown = [file for file in directory.files if file.is_open]
        closed = [file for file in directory.files if not file.is_open][:listed]
        listed -= len(closed)
        shown = sorted((*shown, *closed), key=lambda file: file.name)
        parts += [_directory(directory), *(_file(file, limit, is_react) for file in shown)]
        parts += [_more(directory.file_count - len(shown)), "</directory>\n"]
    return "".join((*parts, DIRECTORIES_CLOSING, CITATIONS))


def directories_of(system_text: str) -> str:
    """Returns the section about files in a system message; "" if it has none."""
    start = system_text.find(f"{DIRECTORIES_OPENING}<file_limits>\n")
    end = system_text.rfind(f"{DIRECTORIES_CLOSING}{CITATIONS}\n\n<memory_metadata>\n")
    return system_text[start : end + len(DIRECTORIES_CLOSING) + len(CITATIONS)] if 0 <= start < end else ""


def _directory(directory: Directory) -> str:
    description = f"<description>{neutral(directory.description)}</description>\n" if directory.description else ""
    instructions = f"<instructions>{neutral(directory.instructions)}</instructions>\n" if directory.instructions else ""
    return f'<directory name="{_attribute(directory.name)}">\n{description}{instructions}'


def _file(file: DirectoryFile, limit: int, is_react: bool) -> str:
    status = "open" if file.is_open else "closed"
    processing = "" if file.status in _READY else f"- processing={file.status}\n"
    metadata = (
        f"<metadata>\n- read_only=true\n{processing}- chars_current={len(file.value)}\n- chars_limit={limit}\n"
        "</metadata>\n"
    )
    name = _attribute(file.name)
    text = neutral(file.value, name)
    if is_react:
        return (
            f'<file status="{status}">\n<{name}>\n<description>\n\n</description>\n{metadata}'
            f"<value>\n{text}\n</value>\n</{name}>\n</file>\n"
        )
    value = f"<value>\n{text}\n</value>\n" if file.is_open else ""
    return f'<file status="{status}" name="{name}">\n{metadata}{value}</file>\n'


def _more(count: int) -> str:
    if count <= 0:
        return ""
    return (
        f"- {count} more files are not listed. Find them with grep_files, whose argument include selects files by "
        "name, or with semantic_search_files.\n"
    )


def _attribute(name: str) -> str:
    return name.replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


def skills_section(skills: Sequence[ClientSkill]) -> str:
    """Returns the list of skills, in their order."""
    lines = (f"- {skill.name} ({skill.location}): {' '.join(skill.description.split())}" for skill in skills)
    return "\n".join(("<available_skills>", _INTRODUCTION, *map(neutral, lines), "</available_skills>"))


_log = structlog.get_logger("mnemesh.prompts")

_KEY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SUFFIX: Final = ".txt"
_MOST_BYTES_OF_A_CHARACTER: Final = 4


class Prompts:
    """The system prompts that agents can be created with."""

    def __init__(self, directory: Path) -> None:
        """Reads custom prompts from `directory`, as `<key>.txt`. The directory is created if it does not exist."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory

    def get(self, key: str) -> SystemPrompt:
        """Returns the prompt under a key. Built-in prompts take precedence. Custom prompts are read again each time.

        Raises:
            NotFound: no prompt has the key, or its file cannot be used as a prompt. Metadata: resource_id.
        """
        builtin = _builtin().get(key)
        if builtin is not None:
            return builtin
        # A key is a name and never a path, so nothing outside of the directory can be read.
        if _KEY.fullmatch(key) is None:
            raise _missing(key)
        return self._read(key)

    def all(self) -> tuple[SystemPrompt, ...]:
        """Returns all prompts ordered by key. A file that cannot be used as a prompt is left out and logged."""
        custom = {prompt.key: prompt for prompt in self._custom()}
        return tuple(prompt for _, prompt in sorted((custom | dict(_builtin())).items()))

    def _custom(self) -> Iterator[SystemPrompt]:
        for path in self._directory.glob(f"*{_SUFFIX}"):
            key = path.name.removesuffix(_SUFFIX)
            if _KEY.fullmatch(key) and key not in _builtin():
                try:
                    yield self._read(key)
                except NotFound as error:
                    _log.warning("system_prompt_file_unusable", key=key, error=error.message)

    def _read(self, key: str) -> SystemPrompt:
        path = self._directory / f"{key}{_SUFFIX}"
        try:
            if not path.is_file():
                raise _missing(key)
            is_long = path.stat().st_size > MAX_SYSTEM_PROMPT * _MOST_BYTES_OF_A_CHARACTER
            text = "" if is_long else path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise NotFound(f"The file of system prompt {key!r} cannot be read as UTF-8.", resource_id=key) from error
        if is_long or len(text) > MAX_SYSTEM_PROMPT or "\0" in text:
            raise NotFound(
                f"The file of system prompt {key!r} is longer than {MAX_SYSTEM_PROMPT} characters, or has a NUL.",
                resource_id=key,
            )
        return SystemPrompt(key, text, built_in=False)


def _missing(key: str) -> NotFound:
    known = ", ".join(_builtin())
    return NotFound(f"There is no system prompt {key[:100]!r}. The built-in ones are {known}.", resource_id=key[:100])


@cache
def _builtin() -> dict[str, SystemPrompt]:
    folder = resources.files(__package__) / "templates"
    texts = {
        file.name.removesuffix(_SUFFIX): file.read_text(encoding="utf-8").removesuffix("\n")
        for file in folder.iterdir()
        if file.name.endswith(_SUFFIX)
    }
    return {key: SystemPrompt(key, text, built_in=True) for key, text in texts.items()}
