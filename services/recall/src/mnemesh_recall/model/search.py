"""Searches and lists of messages: the query, the scope, the hits, and the rules for requests."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

import msgspec
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.text import require_search_text, require_text
from mnemesh_retrieval.index import SearchMode
from mnemesh_retrieval.time_expressions.resolver import TimeRange
from mnemesh_retrieval.words.sparse import split_speaker
from mnemesh_types.messages import ContentPart, Message, Role, TextPart

from mnemesh_recall.model.messages import MAX_NAME_CHARACTERS, MessageFilter, require_name
from mnemesh_recall.model.ranking import Candidates

SEND_MESSAGE: Final = "send_message"
CONVERSATION_SEARCH: Final = "conversation_search"
SEARCH_TOOLS: Final = frozenset({CONVERSATION_SEARCH, "search_memory", "episodic_memory_search"})
_REPEATING_TOOLS: Final = frozenset({SEND_MESSAGE, *SEARCH_TOOLS})

SEARCHABLE_ROLES: Final = (Role.USER, Role.ASSISTANT, Role.TOOL)

_json: Final = msgspec.json.Decoder()


def searchable_text(message: Message) -> str:
    """Returns the searchable text of a message; "" if the message must not be found.

    System messages, summaries, approvals, failed steps, heartbeats and other events have none. An assistant message has
    its text and the text sent by send_message; a tool message the results of its tools, except for those that only
    repeat other messages (send_message and searches).
    """
    if message.is_err or message.is_event:
        return ""
    match message.role:
        case Role.USER:
            text = _texts(message.content)
        case Role.ASSISTANT:
            text = _assistant_text(message)
        case Role.TOOL:
            text = _tool_text(message)
        case _:
            return ""
    return text.replace("\0", " ").strip()


def speaker_of(message: Message, text: str) -> str:
    """Returns the speaker of a message, or "" if it has none: its name, or the one at the beginning of its text.

    Args:
        message: the message.
        text: its searchable text.
    """
    return message.name or split_speaker(text)[0]


def embedded_text(message: Message) -> str:
    """Returns the text whose vector finds a message: "Name: text" if its speaker has a name."""
    text = searchable_text(message)
    is_spoken = message.role in (Role.USER, Role.ASSISTANT)
    return f"{message.name}: {text}" if text and is_spoken and message.name and not split_speaker(text)[0] else text


def _texts(parts: Iterable[ContentPart]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, TextPart) and part.text)


def _assistant_text(message: Message) -> str:
    is_search = any(call.name in SEARCH_TOOLS for call in message.tool_calls)
    texts = [] if is_search else [_texts(message.content)]
    for call in message.tool_calls:
        if call.name == SEND_MESSAGE and isinstance(sent := (_unpack(call.arguments) or {}).get("message"), str):
            texts.append(sent)
    return "\n".join(text for text in texts if text)


def _tool_text(message: Message) -> str:
    if not message.tool_returns:
        return "" if message.name in _REPEATING_TOOLS else _texts(message.content)
    results = (_texts(item.content) for item in message.tool_returns if item.name not in _REPEATING_TOOLS)
    return "\n".join(text for text in results if text)


def _unpack(text: str) -> dict[str, Any] | None:
    """Returns the JSON object that the text contains; None if it is not one."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = _json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchScope:
    """The messages that a search considers. A condition that is None or empty does not apply."""

    agent_id: str | None = None
    conversation_id: str | None = None
    roles: tuple[Role, ...] = ()
    from_time: datetime | None = None
    """Inclusive."""
    before_time: datetime | None = None
    """Exclusive."""
    exclude_ids: tuple[str, ...] = ()
    speakers: tuple[str, ...] = ()
    """Names, compared without case; see `speaker_of`."""
    sender_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSearch:
    """A search of messages. A search without a query that is not blank lists the newest ones."""

    query: str
    mode: SearchMode
    limit: int
    scope: SearchScope
    offset: int = 0
    """The number of best hits to leave out, because earlier calls returned them."""
    further_queries: tuple[str, ...] = ()
    time_zone: tzinfo = UTC
    reference_time: datetime | None = None
    """The time from which expressions such as "last week" are resolved; None recognises only complete dates."""
    messages_before: int = 0
    messages_after: int = 0
    rerank: bool | None = None
    """None means the default of the service."""

    @property
    def queries(self) -> tuple[str, ...]:
        """The different queries that are not blank, in order."""
        return tuple(dict.fromkeys(query for query in (self.query, *self.further_queries) if query.strip()))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The messages of a dialogue before and after one of them, oldest first."""

    before: tuple[Message, ...] = ()
    after: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class WordQuery:
    """A query as the full-text index selects candidates for it."""

    text: str
    """The words; "" if words do not count."""
    fingerprint: str
    """That of the whole query; see `ranking.exact.fingerprint`."""


@dataclass(frozen=True, slots=True)
class WordCandidates:
    """The messages that match a query by words."""

    candidates: Candidates
    """Newest first."""
    rarities: Mapping[str, float]
    """The terms that are in any message of the scope or beside it, with their rarities."""
    is_complete: bool = True
    """False if messages of the scope were not indexed, or have the words of an earlier analysis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageHit:
    """A message that was found. Ranks start at 1. `mode` is None in a list of the newest messages."""

    message: Message
    text: str
    score: float = 0.0
    text_score: float | None = None
    text_rank: int | None = None
    vector_score: float | None = None
    vector_rank: int | None = None
    mode: SearchMode | None = None
    rerank_score: float | None = None
    before: tuple[Message, ...] = ()
    """The messages of the conversation before it, oldest first."""
    after: tuple[Message, ...] = ()
    question: Message | None = None
    """The message before it, if that asks a question which this one may answer."""


@dataclass(frozen=True, slots=True)
class MessageHits:
    """The result of a search from its offset on, best first."""

    hits: tuple[MessageHit, ...]
    degraded: bool = False
    """True if similar messages may be missing, because the vector index or the embedder was not available."""
    reranked: bool = False
    time_ranges: tuple[TimeRange, ...] = ()
    """The ranges of the expressions of time in the queries."""


MAX_QUERY_CHARACTERS: Final = 10_000
MAX_IDS: Final = 1000
MAX_EXCLUDED_IDS: Final = 10_000
MAX_HITS: Final = 100
MAX_SHORT_CHARACTERS: Final = 255
MAX_FURTHER_QUERIES: Final = 9
MAX_SPEAKERS: Final = 20
MAX_SENDERS: Final = 20
MAX_BESIDE: Final = 10
"""The largest number of messages to return before a hit, and after it."""


def require_ids(ids: Sequence[str], prefix: str, field: str, *, at_most: int = MAX_IDS) -> None:
    """Refuses more than `at_most` ids, or one that is not of the form `<prefix>-<uuid4>`. Raises InvalidArgument."""
    if len(ids) > at_most:
        raise InvalidArgument(f"{field} must be at most {at_most:,}.", field=field)
    for index, id_ in enumerate(ids):
        require_id(id_, prefix, f"{field}[{index}]")


def require_page(page: PageQuery, prefix: str | None = None) -> None:
    """Refuses a page after or before a row with an invalid id.

    Args:
        page: the page.
        prefix: the prefix of the ids; None if recall does not assign them.

    Raises:
        InvalidArgument: naming `after_id` or `before_id`.
    """
    for field in ("after_id", "before_id"):
        if (id_ := getattr(page, field)) is None:
            continue
        if prefix is None:
            require_short(id_, field)
        else:
            require_id(id_, prefix, field)


def require_message_filter(filter_: MessageFilter) -> None:
    """Refuses a filter with an invalid id, or a text that is too long. Raises InvalidArgument."""
    require_ids(filter_.agent_ids, "agent", "agent_ids")
    for conversation_id in filter_.conversation_ids:
        require_id(conversation_id, "conv", "conversation.conversation_id")
    for name, prefix in (("run_id", "run"), ("step_id", "step"), ("group_id", "group")):
        if (id_ := getattr(filter_, name)) is not None:
            require_id(id_, prefix, name)
    for name in ("turn_id", "otid", "tool_call_id"):
        if (text := getattr(filter_, name)) is not None:
            require_name(text, name)
    if filter_.text is not None:
        require_search_text(filter_.text, "text_search")
    for name in ("after_sequence_id", "until_sequence_id"):
        if getattr(filter_, name) is not None and len(filter_.agent_ids) != 1:
            raise InvalidArgument(f"{name} requires exactly one of agent_ids.", field=name)


def require_search(search: MessageSearch) -> None:
    """Refuses a search with a limit, a role, an id or a query that is out of bounds. Raises InvalidArgument."""
    require_limit(search.limit)
    scope = search.scope
    if any(role not in SEARCHABLE_ROLES for role in scope.roles):
        raise InvalidArgument("roles must be USER, ASSISTANT or TOOL.", field="roles")
    if scope.agent_id is not None:
        require_id(scope.agent_id, "agent", "agent_id")
    if scope.conversation_id is not None:
        require_id(scope.conversation_id, "conv", "conversation.conversation_id")
    require_query(search.query, "query")
    require_names(search.further_queries, "further_queries", MAX_FURTHER_QUERIES, require_query)
    require_names(scope.speakers, "speakers", MAX_SPEAKERS, _require_speaker)
    require_names(scope.sender_ids, "sender_ids", MAX_SENDERS, _require_sender)
    for field in ("messages_before", "messages_after"):
        if not 0 <= getattr(search, field) <= MAX_BESIDE:
            raise InvalidArgument(f"{field} must be between 0 and {MAX_BESIDE}.", field=field)
    require_ids(scope.exclude_ids, "message", "exclude_message_ids", at_most=MAX_EXCLUDED_IDS)


def require_names(values: Sequence[str], field: str, at_most: int, require_one: Callable[[str, str], object]) -> None:
    """Refuses more than `at_most` values, or one that `require_one` refuses. Raises InvalidArgument."""
    if len(values) > at_most:
        raise InvalidArgument(f"{field} must be at most {at_most:,}.", field=field)
    for index, value in enumerate(values):
        require_one(value, f"{field}[{index}]")


def _require_speaker(name: str, field: str) -> None:
    require_text(name, field, min_chars=1, max_chars=MAX_NAME_CHARACTERS, allow_blank=False)


def _require_sender(id_: str, field: str) -> None:
    require_name(id_, field, min_chars=1)


def require_query(text: str, field: str) -> None:
    """Refuses a query that is too long or contains a NUL character. Raises InvalidArgument."""
    require_text(text, field, max_chars=MAX_QUERY_CHARACTERS)


def require_limit(limit: int) -> None:
    """Refuses a number of hits that is out of bounds. Raises InvalidArgument."""
    if not 0 <= limit <= MAX_HITS:
        raise InvalidArgument(f"limit must be between 0 and {MAX_HITS}.", field="limit")


def require_short(text: str, field: str) -> str:
    """Returns a tag, a name, or an id that recall does not assign, if it is not empty and short enough."""
    return require_text(text, field, min_chars=1, max_chars=MAX_SHORT_CHARACTERS)
