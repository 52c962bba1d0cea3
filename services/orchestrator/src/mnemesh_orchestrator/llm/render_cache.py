"""Caches the rendered form of stored messages, so that a long window is rendered once."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final

_TEXTS: Final = 32_768
_CHARACTERS: Final = 24_000_000
_HISTORIES: Final = 128


class RenderCache:
    """A bounded LRU cache of texts. Each is a pure function of its key and its source.

    The key holds the message id, the time zone and everything else that the text depends on. The source is the message,
    or the fields of it that are rendered: an entry is valid only for the same or an equal object, so an edited message
    is rendered again.
    """

    def __init__(self, max_texts: int = _TEXTS, max_characters: int = _CHARACTERS) -> None:
        self._max_texts = max_texts
        self._max_characters = max_characters
        self._entries: OrderedDict[Hashable, tuple[object, str]] = OrderedDict()
        self._characters = 0
        self._histories: OrderedDict[Hashable, Any] = OrderedDict()

    def history(self, key: Hashable) -> Any:
        """Returns the history that was kept last under `key`, or None."""
        return self._histories.get(key)

    def keep_history(self, key: Hashable, history: Any) -> None:
        """Keeps the rendered history of a window until its next request. Holds the latest 128 windows."""
        self._histories[key] = history
        self._histories.move_to_end(key)
        while len(self._histories) > _HISTORIES:
            self._histories.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)

    def text(self, key: Hashable, source: object, render: Callable[[], str]) -> str:
        """Returns the text under `key`, which is rendered if it is not cached for this source."""
        entry = self._entries.get(key)
        if entry is not None and (entry[0] is source or entry[0] == source):
            self._entries.move_to_end(key)
            return entry[1]
        text = render()
        self._keep(key, source, text)
        return text

    def _keep(self, key: Hashable, source: object, text: str) -> None:
        if (old := self._entries.pop(key, None)) is not None:
            self._characters -= len(old[1])
        if len(text) * 8 > self._max_characters:  # One image must not evict a whole window.
            return
        self._entries[key] = (source, text)
        self._characters += len(text)
        while len(self._entries) > self._max_texts or self._characters > self._max_characters:
            _, (_, evicted) = self._entries.popitem(last=False)
            self._characters -= len(evicted)
