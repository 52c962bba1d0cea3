"""The processing of a file: jobs, texts and passages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mnemesh_files.model.files import File


@dataclass(frozen=True, slots=True)
class Job:
    """The claim of a worker on a file."""

    organization_id: str
    file: File
    archive_id: str
    """The archive of the folder."""
    chunk_size: int
    claim: int
    """The number of the claim. Later claims have greater numbers; writes of earlier ones are refused."""
    failures: int
    """The claims in a row, with this one, that ended without progress."""
    next_text_id: str | None
    """A text that an earlier claim has stored, whose passages are not all embedded."""
    next_text: Mapping[str, Any]
    """What is known about that text; see ParsedText.facts."""
    expected_size: int | None
    """What a download must have."""
    expected_sha256: str | None


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A parsed text."""

    id: str
    lines: tuple[str, ...]
    facts: Mapping[str, Any]
    """The values of the columns of a file that describe its text."""
    media_type: str


@dataclass(frozen=True, slots=True)
class FilePassage:
    """A passage of a text."""

    position: int
    passage_id: str
    text_hash: str
    start_line: int
    end_line: int
    embedded: bool
    """Whether the archive has it."""


def planned_passages(fresh: Sequence[FilePassage], known: Sequence[FilePassage]) -> tuple[FilePassage, ...]:
    """Returns the passages of a text, of which those with an equal text take over a known passage that is embedded.

    Args:
        fresh: the passages, none of them embedded.
        known: the passages of earlier texts of the file.
    """
    by_hash: dict[str, list[str]] = {}
    for passage in known:
        ids = by_hash.setdefault(passage.text_hash, [])
        if passage.embedded and passage.passage_id not in ids:
            ids.append(passage.passage_id)
    planned = []
    for passage in fresh:
        ids = by_hash.get(passage.text_hash, [])
        taken = ids.pop(0) if ids else None
        planned.append(
            FilePassage(
                passage.position,
                taken or passage.passage_id,
                passage.text_hash,
                passage.start_line,
                passage.end_line,
                embedded=taken is not None,
            )
        )
    return tuple(planned)
