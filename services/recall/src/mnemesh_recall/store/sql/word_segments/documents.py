"""The documents of a segment without their words, and those of all segments of an agent together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from mnemesh_recall.model.candidates import Key
from mnemesh_recall.store.sql.word_segments.columns import COLUMNS, DOCUMENT_BYTES, LABELS, Array, StoredColumns

_PAIRS: Final = 1 << 16
_EMPTY: Final = b"\0" * COLUMNS["id"].itemsize
_ABOUT: Final = LABELS.index("about")


@dataclass(frozen=True)
class Documents:
    """The documents of a segment without their words."""

    columns: Mapping[str, Array]
    """An array for each of COLUMNS, with an element for each document."""
    labels: tuple[tuple[str, ...], ...]
    """The texts of each of LABELS. The first is "", which stands for none."""
    removed: Array
    """The row ids of documents of earlier segments that do not exist any more."""

    def __len__(self) -> int:
        return len(self.columns["id"])

    @classmethod
    def from_row(cls, labels: str, headers: bytes, removed: bytes) -> Documents:
        """Returns the documents of a row, and of what `packed` returned."""
        texts = tuple(map(tuple, json.loads(labels)))
        return cls(StoredColumns(headers), texts, np.frombuffer(removed, "<i8"))

    def to_row(self) -> dict[str, str | bytes]:
        """Returns the columns `labels` and `removed`; see `packed` for the rest."""
        return {
            "labels": json.dumps(self.labels, ensure_ascii=False, separators=(",", ":")),
            "removed": self.removed.astype("<i8").tobytes(),
        }

    def at(self, name: str, places: Array) -> Array:
        """Returns a field of some documents."""
        columns = self.columns
        return columns.at(name, places) if isinstance(columns, StoredColumns) else columns[name][places]

    @cached_property
    def pairs(self) -> Array:
        """Bytes 12 and 13 of the ids."""
        return np.ascontiguousarray(_pair(self.columns["id"].view(np.uint16)))

    @cached_property
    def masking(self) -> Array:
        """The row ids whose documents in earlier segments are not valid any more."""
        return np.concatenate([self.columns["row_id"], self.removed])

    @property
    def size(self) -> int:
        """The number of bytes in memory, approximately."""
        texts = sum(64 + len(text) for each in self.labels for text in each)
        return len(self) * DOCUMENT_BYTES + self.removed.nbytes + texts


class JoinedDocuments:
    """The documents of successive segments, the oldest first, numbered through."""

    def __init__(self, parts: Sequence[Documents]) -> None:
        self.parts = parts
        self.offsets: Array = np.cumsum([0, *(len(part) for part in parts)])
        """The number of the first document of each part, and the number of all."""
        self._columns: dict[str, Array] = {}

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @cached_property
    def is_valid(self) -> Array:
        """The mask of the documents that no later part replaces or removes."""
        return np.concatenate(valid(self.parts)) if self.parts else np.empty(0, np.bool_)

    def column(self, name: str) -> Array:
        """Returns a field of all documents."""
        found = self._columns.get(name)
        if found is None:
            parts = [part.columns[name] for part in self.parts]
            found = self._columns[name] = np.concatenate(parts) if parts else np.empty(0, COLUMNS[name])
        return found

    def chosen(self, places: Array) -> ChosenDocuments:
        """Returns some documents."""
        return ChosenDocuments(self, places)

    def has_label(self, name: str, texts: Iterable[str]) -> Array:
        """Returns the mask of the documents whose label is one of these texts."""
        wanted, field = set(texts) - {""}, LABELS.index(name)
        masks = [np.empty(0, np.bool_)]
        for part in self.parts:
            codes = [code for code, text in enumerate(part.labels[field]) if text in wanted]
            masks.append(np.isin(part.columns[name], np.array(codes, COLUMNS[name])))
        return np.concatenate(masks)

    def places_of(self, keys: Iterable[Key]) -> Array:
        """Returns the places of the documents with these ids, ascending."""
        wanted = {key for key in keys if key}
        if not wanted or not self.parts:
            return np.empty(0, np.int64)
        is_near = np.zeros(_PAIRS, np.bool_)
        is_near[_pair(np.frombuffer(b"".join(wanted), np.uint16))] = True
        near = np.flatnonzero(is_near[self._pairs])
        found = [key in wanted for key in keys_of(self.column("id")[near])]
        return near[np.array(found, np.bool_)]

    @cached_property
    def _pairs(self) -> Array:
        return np.concatenate([part.pairs for part in self.parts])


class ChosenDocuments:
    """Some documents of several parts, in any order."""

    def __init__(self, documents: JoinedDocuments, places: Array) -> None:
        self._size = len(places)
        numbers = np.searchsorted(documents.offsets, places, side="right") - 1
        self._groups: list[tuple[Documents, Array, Array]] = []
        """Parts, which of the chosen ones are in them, and at which place of the part these are."""
        for number in np.flatnonzero(np.bincount(numbers)).tolist():
            rows = np.flatnonzero(numbers == number)
            self._groups.append((documents.parts[number], rows, places[rows] - documents.offsets[number]))

    def column(self, name: str) -> Array:
        """Returns a field."""
        if len(self._groups) == 1:
            part, _, places = self._groups[0]
            return part.at(name, places)
        kind = COLUMNS[name]
        found = np.zeros((self._size, *kind.shape), kind.base)
        for part, rows, places in self._groups:
            found[rows] = part.at(name, places)
        return found

    def keys(self, name: str) -> list[Key]:
        """Returns a field of ids; empty ones for none."""
        return keys_of(self.column(name))

    def abouts(self) -> list[str]:
        """Returns the speaker and the day of each."""
        if len(self._groups) == 1:
            part, _, places = self._groups[0]
            texts = part.labels[_ABOUT]
            return [texts[code] for code in part.at("about", places).tolist()]
        found = [""] * self._size
        for part, rows, places in self._groups:
            texts = part.labels[_ABOUT]
            for row, code in zip(rows.tolist(), part.at("about", places).tolist(), strict=True):
                found[row] = texts[code]
        return found


def keys_of(ids: Array) -> list[Key]:
    """Returns stored ids as keys; empty ones for none."""
    # As values of no type, ids keep the zeros at their ends.
    return [b"" if key == _EMPTY else key for key in ids.view("V16").tolist()]


def valid(parts: Sequence[Documents]) -> list[Array]:
    """Returns for each part, the oldest first, the mask of the documents that no later part replaces or removes."""
    masks: list[Array] = []
    later: Array = np.empty(0, np.int64)
    for part in reversed(parts):
        row_ids = part.columns["row_id"]
        mask: Array = np.ones(len(row_ids), np.bool_)
        if len(later) and len(row_ids):
            near = later[later <= row_ids.max()]
            if len(near):
                mask = ~np.isin(row_ids, near)
        masks.append(mask)
        later = np.concatenate([later, part.masking])
    return masks[::-1]


def _pair(ids: Array) -> Array:
    """Returns bytes 12 and 13 of ids, given as pairs of bytes. They are random in every version of UUIDs."""
    pair: Array = ids[6::8]
    return pair
