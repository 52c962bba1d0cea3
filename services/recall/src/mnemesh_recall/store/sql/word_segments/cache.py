"""The documents of segments that were read last. Segments never change, so a cached one is always valid."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from mnemesh_recall.store.sql.word_segments.documents import Documents

MOST_BYTES: Final = 32 << 20


class DocumentCache:
    """Documents by segment id, at most 32 MB. SQLite's readers are threads."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[int, Documents] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, ids: Iterable[int]) -> dict[int, Documents]:
        """Returns those that are cached."""
        with self._lock:
            found = {id_: self._kept[id_] for id_ in ids if id_ in self._kept}
            for id_ in found:
                self._kept.move_to_end(id_)
        return found

    def add(self, documents: Mapping[int, Documents]) -> None:
        """Adds documents, and drops the ones that were used least recently."""
        with self._lock:
            for id_, each in documents.items():
                if id_ not in self._kept and each.size <= self._most_bytes:
                    self._kept[id_] = each
                    self._bytes += each.size
            while self._bytes > self._most_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= dropped.size
