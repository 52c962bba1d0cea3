"""Passages and the vectors that come with them: values, their validation, and pure rules."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.text import require_json_object, require_line, require_text
from mnemesh_retrieval.ranking.scores import utterance
from mnemesh_types import archival
from mnemesh_types.archival import EmbedderIdentity, PassageSource

from mnemesh_archival.model.archives import MAX_METADATA_BYTES, require_no_control_characters

MAX_GAP: Final = timedelta(hours=6)
"""Passages whose times are further apart do not belong together."""
WINDOW: Final = 8
"""The number of consecutive passages that are compared with a dialogue."""
_MIN_NAMED: Final = 3
_MAX_SPEAKERS: Final = 4
_MIN_QUESTIONS: Final = 2


class Continuity(IntEnum):
    """Whether a passage continues others. The first three are the values of the contract."""

    AUTOMATIC = 0
    """Decided by the service; a passage with this value looked like neither a dialogue nor a document so far."""
    CONTINUOUS = 1
    """The caller stated that its passages are consecutive parts."""
    SEPARATE = 2
    """The caller stated that the passage stands alone."""
    DIALOGUE = 3
    """Decided by the service: a turn of a dialogue."""
    DOCUMENT = 4
    """Decided by the service: a part of a file."""

    __hash__ = int.__hash__  # The hash of enumerations is a slow function, and a search needs hundreds.

    @property
    def is_linked(self) -> bool:
        """Whether neighbours with the same value belong together."""
        return self in LINKED

    @property
    def is_spoken(self) -> bool:
        """Whether speakers and questions of the passage count in the ranking."""
        return self in _SPOKEN


_SPOKEN: Final = frozenset({Continuity.CONTINUOUS, Continuity.DIALOGUE})
LINKED: Final = frozenset({Continuity.CONTINUOUS, Continuity.DIALOGUE, Continuity.DOCUMENT})
"""See `Continuity.is_linked`."""


class Asking(IntEnum):
    """Whether a text has question sentences."""

    NONE = 0
    SOMEWHERE = 1
    AT_END = 2


@dataclass(frozen=True, slots=True)
class Cues:
    """The parts of a text by which turns of a dialogue are recognised and ranked."""

    speaker: str
    """The name at the beginning, as in "Ada: Good morning."; "" without one."""
    asking: Asking


@dataclass(frozen=True, slots=True)
class Turn:
    """A passage that may be a turn of a dialogue, among others of the same writer and file."""

    position: int
    created_at: datetime
    speaker: str
    asking: Asking
    continuity: Continuity


def cues_of(text: str) -> Cues:
    parts = utterance(text)
    if not parts.asks:
        return Cues(parts.speaker, Asking.NONE)
    return Cues(parts.speaker, Asking.AT_END if parts.ends_in_question else Asking.SOMEWHERE)


def dialogue_positions(turns: Iterable[Turn]) -> set[int]:
    """Returns the positions of the passages that look like turns of a dialogue.

    Args:
        turns: passages of one strand, in the order of their positions.
    """
    found: set[int] = set()
    run: list[Turn] = []
    for turn in turns:
        if run and not _follows(run[-1], turn):
            run.clear()
        if turn.continuity not in (Continuity.AUTOMATIC, Continuity.DIALOGUE):
            run.clear()
            continue
        run.append(turn)
        window = run[-WINDOW:]
        for start in range(len(window) - 1):
            if _is_dialogue(window[start:]):
                found.update(each.position for each in window[start:])
                break
    return found


def _follows(before: Turn, after: Turn) -> bool:
    return after.position == before.position + 1 and abs(after.created_at - before.created_at) <= MAX_GAP


def _is_dialogue(turns: Sequence[Turn]) -> bool:
    speakers = {turn.speaker for turn in turns}
    if "" not in speakers:
        return _is_named_dialogue(turns, len(speakers))
    return speakers == {""} and _is_nameless_dialogue(turns)


def _is_named_dialogue(turns: Sequence[Turn], speakers: int) -> bool:
    """A few speakers take turns, one of them speaks again, and one asks a question."""
    changes = sum(before.speaker != after.speaker for before, after in pairwise(turns))
    return (
        len(turns) >= _MIN_NAMED
        and 1 < speakers <= min(_MAX_SPEAKERS, len(turns) // 2 + 1)
        and speakers < len(turns)
        and 2 * changes >= len(turns) - 1
        and any(turn.asking for turn in turns)
    )


def _is_nameless_dialogue(turns: Sequence[Turn]) -> bool:
    """Two passages or more ask, at least one in four, and one of them is followed by a passage that does not ask.

    A single question among facts, such as an open point, is not a dialogue.
    """
    asking = sum(turn.asking is not Asking.NONE for turn in turns)
    return asking >= max(_MIN_QUESTIONS, len(turns) / 4) and any(
        before.asking and not after.asking for before, after in pairwise(turns)
    )


MAX_HANDLE_CHARS: Final = 500
NUMBER: Final = np.dtype("<f4")
"""The numbers of a stored vector: what embedders and contracts have. Two bytes each would alter them."""


@dataclass(frozen=True, slots=True)
class GivenVector:
    """A vector that an embedder made of a text earlier."""

    identity: EmbedderIdentity
    values: bytes
    """The numbers, as NUMBER."""


class VectorUse(IntEnum):
    """The use of the vector of a passage. The numbers are those of the contract."""

    NONE = 0
    """There was none, or the passage was not stored."""
    KEPT = 1
    OTHER_EMBEDDER = 2
    OTHER_DIMENSION = 3


def validated_vector(numbers: Sequence[float], handle: str, dimension: int, field: str) -> GivenVector:
    """Returns a vector that a caller gives.

    Args:
        numbers: the vector.
        handle: the embedder that made it, as `provider/model`.
        dimension: the length of the vectors of the embedder.
        field: the path of the passage in the request, such as `passages[0]`.

    Raises:
        InvalidArgument: the identity or the vector is missing or bad.
    """
    by = f"{field}.embedded_by"
    require_line(handle, f"{by}.handle", max_chars=MAX_HANDLE_CHARS)
    if dimension < 1:
        raise InvalidArgument(f"{by}.dimension must be at least 1.", field=f"{by}.dimension")
    name = f"{field}.embedding"
    if len(numbers) != dimension:
        raise InvalidArgument(f"{name} must have {dimension} numbers, as embedded_by states.", field=name)
    vector = np.fromiter(numbers, dtype=NUMBER, count=dimension)
    if not np.isfinite(vector).all():
        raise InvalidArgument(f"{name} must have finite numbers only.", field=name)
    if not vector.any():
        raise InvalidArgument(f"{name} must not be the zero vector.", field=name)
    return GivenVector(EmbedderIdentity(handle, dimension), vector.tobytes())


def decide_use(given: GivenVector | None, kept: Collection[EmbedderIdentity]) -> VectorUse:
    """Returns whether an archive keeps a vector, or why not.

    Args:
        given: the vector; None if the passage has none.
        kept: the identities of the archive's embedder and of the one that it is changing to.
    """
    if given is None:
        return VectorUse.NONE
    if given.identity in kept:
        return VectorUse.KEPT
    if any(identity.handle == given.identity.handle for identity in kept):
        return VectorUse.OTHER_DIMENSION
    return VectorUse.OTHER_EMBEDDER


MAX_TEXT_BYTES: Final = 1_000_000
MAX_TAGS: Final = 100
MAX_DELETED: Final = 1_000
"""The largest number of passages that one call deletes."""
MAX_TAG_CHARS: Final = 200
MAX_FILE_NAME_CHARS: Final = 1_000
MAX_FILTER_IDS: Final = 1_000
UPDATABLE_FIELDS: Final = frozenset({"text", "tags", "metadata"})


ENVELOPE_BYTES: Final = 400
"""The size of the ids, times and names of a passage in a response."""


@dataclass(frozen=True, slots=True)
class Passage(archival.Passage):
    """A passage, with the vector that an insert stores with it."""

    given_vector: GivenVector | None = None
    """None on passages that are read."""


@dataclass(frozen=True, slots=True)
class PassageChange:
    """New values of the fields that `fields` names; the others are ignored."""

    fields: frozenset[str]
    updated_at: datetime
    text: str = ""
    tags: tuple[str, ...] = ()
    metadata: str | None = None


@dataclass(frozen=True, slots=True)
class PassageFilter:
    """A filter of passages. All conditions must hold; unset ones match every passage."""

    agent_id: str | None = None
    """Only the archives attached to this agent."""
    archive_id: str | None = None
    tags: tuple[str, ...] = ()
    every_tag: bool = False
    """True if a passage needs all of the tags, False if one is enough."""
    file_id: str | None = None
    folder_id: str | None = None
    since: datetime | None = None
    """UTC, inclusive."""
    until: datetime | None = None
    """UTC, exclusive."""
    sources: tuple[PassageSource, ...] = ()
    archive_ids: tuple[str, ...] = ()
    """Only these archives; empty for no such condition."""
    file_ids: tuple[str, ...] = ()
    """Only passages of these files; empty for no such condition."""

    @property
    def narrows(self) -> bool:
        """True if it excludes passages of the archives that it covers."""
        bounds = (self.file_id, self.folder_id, self.since, self.until)
        return bool(self.tags or self.sources or self.file_ids) or any(bound is not None for bound in bounds)

    def admits(self, passage: Passage) -> bool:
        """Returns whether a passage fulfils the conditions, apart from those of the agent and the archive."""
        if self.tags:
            held = [tag in passage.tags for tag in self.tags]
            if not (all(held) if self.every_tag else any(held)):
                return False
        return (
            (self.file_id is None or passage.file_id == self.file_id)
            and (not self.file_ids or passage.file_id in self.file_ids)
            and (self.folder_id is None or passage.folder_id == self.folder_id)
            and (not self.sources or passage.source in self.sources)
            and (self.since is None or passage.created_at >= self.since)
            and (self.until is None or passage.created_at < self.until)
        )


class PassagePosition(NamedTuple):
    """The position of a passage in the insertion order of its archive.

    A tuple, because every search reads hundreds.
    """

    point_id: UUID
    archive_id: str
    strand: str
    """Passages with the same strand have the same writer and the same file; see `strand_of`."""
    position: int
    created_at: datetime
    continuity: Continuity
    speaker: str
    """The name at the beginning of the text; "" without one."""
    asking: Asking

    def continues(self, other: "PassagePosition") -> bool:
        """Returns whether both are of one dialogue or document, at consecutive positions."""
        return (
            self.continuity.is_linked
            and self.continuity is other.continuity
            and (self.archive_id, self.strand) == (other.archive_id, other.strand)
            and abs(self.position - other.position) == 1
            and abs(self.created_at - other.created_at) <= MAX_GAP
        )


def validate_draft(draft: Passage, field: str) -> Passage:
    """Returns the draft with its tags deduplicated.

    Args:
        draft: the passage.
        field: the path of the passage in the request, such as `passages[0]`.

    Raises:
        InvalidArgument: a field has an invalid value.
    """
    if draft.id:
        require_id(draft.id, "passage", f"{field}.id")
    for value, prefix, name in (
        (draft.agent_id, "agent", "agent_id"),
        (draft.file_id, "file", "file_id"),
        (draft.folder_id, "source", "folder_id"),
    ):
        if value is not None:
            require_id(value, prefix, f"{field}.{name}")
    if draft.file_name is not None:
        require_no_control_characters(draft.file_name, f"{field}.file_name", MAX_FILE_NAME_CHARS)
    validate_metadata(draft.metadata, f"{field}.metadata")
    validate_text(draft.text, f"{field}.text")
    return replace(draft, tags=validate_tags(draft.tags, f"{field}.tags"))


def validate_update(draft: Passage, fields: Collection[str], now: datetime) -> PassageChange:
    """Returns the change that sets the named fields to the values of `draft`.

    Raises:
        InvalidArgument: `fields` is empty or names a field that cannot be updated, or a value is bad.
    """
    if not fields or not UPDATABLE_FIELDS.issuperset(fields):
        names = ", ".join(sorted(UPDATABLE_FIELDS))
        raise InvalidArgument(f"update_mask must name one or more of {names}.", field="update_mask")
    return PassageChange(
        fields=frozenset(fields),
        updated_at=now,
        text=validate_text(draft.text, "passage.text") if "text" in fields else "",
        tags=validate_tags(draft.tags, "passage.tags") if "tags" in fields else (),
        metadata=validate_metadata(draft.metadata, "passage.metadata") if "metadata" in fields else None,
    )


def validate_filter(filter_: PassageFilter) -> PassageFilter:
    """Returns the filter with its tags deduplicated.

    Raises:
        InvalidArgument: a tag is bad, there are too many tags or ids, or the range of dates is empty.
    """
    for name in ("archive_ids", "file_ids"):
        if len(getattr(filter_, name)) > MAX_FILTER_IDS:
            raise InvalidArgument(f"filter.{name} must have at most {MAX_FILTER_IDS:,} values.", field=f"filter.{name}")
    if filter_.since is not None and filter_.until is not None and filter_.since >= filter_.until:
        raise InvalidArgument("filter.end_date is before filter.start_date.", field="filter.end_date")
    return replace(filter_, tags=validate_tags(filter_.tags, "filter.tags"))


def validated_selection(passage_ids: Sequence[str], file_id: str | None) -> Sequence[str] | str:
    """Returns the ids of passages to be deleted, or of their file.

    Raises:
        InvalidArgument: there are too many ids, or not exactly one of ids and file.
    """
    if file_id is not None and not passage_ids:
        return require_no_control_characters(file_id, "file_id", MAX_FILE_NAME_CHARS)
    if file_id is not None or not passage_ids:
        raise InvalidArgument("Exactly one of passage_ids and file_id must be given.", field="passage_ids")
    if len(passage_ids) > MAX_DELETED:
        raise InvalidArgument(f"passage_ids must have at most {MAX_DELETED:,} values.", field="passage_ids")
    return passage_ids


def validate_text(text: str, field: str) -> str:
    """Returns the text of a passage. Raises InvalidArgument if it is blank, too long, or has a NUL character."""
    return require_text(text, field, max_bytes=MAX_TEXT_BYTES, allow_blank=False)


def validate_tags(tags: tuple[str, ...], field: str) -> tuple[str, ...]:
    """Returns the tags without duplicates, in order. Raises InvalidArgument for a bad tag or too many."""
    unique = tuple(dict.fromkeys(tags))
    if len(unique) > MAX_TAGS:
        raise InvalidArgument(f"{field} must have at most {MAX_TAGS} values.", field=field)
    for tag in unique:
        require_line(tag, field, max_chars=MAX_TAG_CHARS)
    return unique


def validate_metadata(metadata: str | None, field: str) -> str | None:
    """Returns the JSON text unchanged. Raises InvalidArgument unless it is an object within the size limit."""
    return None if metadata is None else require_json_object(metadata, field, max_bytes=MAX_METADATA_BYTES)


def changed(passage: Passage, change: PassageChange) -> Passage:
    """Returns the passage with the new values of a change."""
    return replace(
        passage,
        text=change.text if "text" in change.fields else passage.text,
        tags=change.tags if "tags" in change.fields else passage.tags,
        metadata=change.metadata if "metadata" in change.fields else passage.metadata,
        updated_at=change.updated_at,
    )


def response_bytes(passage: Passage) -> int:
    """Returns the approximate size of a passage in a response."""
    texts = (passage.text, passage.metadata or "", passage.file_name or "", *passage.tags)
    return ENVELOPE_BYTES + sum(len(text.encode()) for text in texts) + 4 * len(passage.embedding)


def point_of(passage_id: str) -> UUID:
    """Returns the point id of a passage, unless another organization imported the same passage id first."""
    return UUID(passage_id.removeprefix("passage-"))


def strand_of(passage: Passage) -> str:
    """Returns the key that passages with the same source, writer and file share."""
    return " ".join((passage.source.name, passage.agent_id or "-", passage.file_id or "-"))


def content_hash(text: str) -> str:
    """Returns the hash by which duplicate texts are found."""
    return hashlib.sha256(text.encode()).hexdigest()
