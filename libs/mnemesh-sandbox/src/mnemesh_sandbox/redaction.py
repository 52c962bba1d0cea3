"""Removes the values of secrets from texts."""

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus

MIN_CHARS: Final = 6
"""A shorter value could be any word, so it stays."""
MAX_FORMS: Final = 200
"""The forms of learned values that are kept."""


class Redactor:
    """Replaces each value by its name: `[secret API_KEY]`.

    It finds the exact value, and the value as JSON, as a Python literal and as part of a URL write it. It does not find
    a value in another form, such as Base64 or reversed, or in pieces.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        """Removes the values of at least `MIN_CHARS` characters, by name."""
        self._given = _named_forms(values)
        self._learned: dict[str, str] = {}
        self._forms = _ordered(self._given)

    def learn(self, values: Mapping[str, str]) -> None:
        """Removes these values, too. Of values that change, such as tokens, the newest `MAX_FORMS` forms are known."""
        learned = _named_forms(values)
        self._learned = {**{form: name for form, name in self._learned.items() if form not in learned}, **learned}
        while len(self._learned) > MAX_FORMS:
            del self._learned[next(iter(self._learned))]
        self._forms = _ordered({**self._given, **self._learned})

    def redacted(self, text: str, *, is_cut: bool = False, begins_late: bool = False) -> str:
        """Returns `text` without the values.

        Args:
            text: The text.
            is_cut: The text may end within a value.
            begins_late: The text may begin within a value.
        """
        for form, name in self._forms:
            if form in text:
                text = text.replace(form, f"[secret {name}]")
        text = self._without_end(text) if begins_late else text
        return self._without_beginning(text) if is_cut else text

    def redacted_value(self, value: Any) -> Any:
        """Returns a JSON value without the values, in its texts, names and numbers."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.redacted(value)
        if isinstance(value, list):
            return [self.redacted_value(part) for part in value]
        if isinstance(value, dict):
            return {self.redacted(str(name)): self.redacted_value(part) for name, part in value.items()}
        if isinstance(value, int | float) and not isinstance(value, bool):
            shown = self.redacted(json.dumps(value))
            return value if shown == json.dumps(value) else shown
        return value

    def _without_end(self, text: str) -> str:
        """Returns `text` without the end of a value at its beginning."""
        for form, name in self._forms:
            end = text.rfind(form[-MIN_CHARS:], 0, len(form))
            while end >= 0:
                if form.endswith(text[: end + MIN_CHARS]):
                    return f"[secret {name}]{text[end + MIN_CHARS :]}"
                end = text.rfind(form[-MIN_CHARS:], 0, end + MIN_CHARS - 1)
        return text

    def _without_beginning(self, text: str) -> str:
        """Returns `text` without the beginning of a value at its end."""
        for form, name in self._forms:
            start = text.find(form[:MIN_CHARS], max(0, len(text) - len(form)))
            while start >= 0:
                if form.startswith(text[start:]):
                    return f"{text[:start]}[secret {name}]"
                start = text.find(form[:MIN_CHARS], start + 1)
        return text


def _named_forms(values: Mapping[str, str]) -> dict[str, str]:
    return {form: name for name, value in values.items() if len(value) >= MIN_CHARS for form in _forms(value)}


def _ordered(forms: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns the longest first, because a value can be part of another one."""
    return sorted(forms.items(), key=lambda item: -len(item[0]))


def _forms(value: str) -> set[str]:
    """Returns the value and the ways in which JSON, Python and URLs write it."""
    literals = {repr(value)[1:-1], ascii(value)[1:-1], repr(value.encode("utf-8", "replace"))[2:-1]}
    urls = {write(value, safe=safe, errors="replace") for write in (quote, quote_plus) for safe in ("", "/")}
    return {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], *literals, *urls}
