"""Values of settings that may be secret, and the variables in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_no_nul, require_text

MAX_VALUE_CHARS: Final = 10_000
MAX_VARIABLES: Final = 200
MAX_VARIABLE_CHARS: Final = 256_000
_VARIABLE: Final = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*(?:\|([^{}]*))?\}\}")
_ONLY_VARIABLES: Final = re.compile(r"(?:\{\{\s*[A-Za-z_][A-Za-z0-9_]*\s*\}\}\s*)+")


@dataclass(frozen=True, slots=True)
class McpSecret:
    """A named value. The name of a token is empty."""

    name: str
    value: str | None = None
    """The value as text: of a request, or one that consists of variables."""
    sealed: bytes | None = None
    """The stored value."""

    def __repr__(self) -> str:
        """Shows no value."""
        return f"McpSecret({self.name!r})"

    @property
    def has_value(self) -> bool:
        """True if there is a value."""
        return self.value is not None or self.sealed is not None

    @property
    def key(self) -> str:
        """The name under which a value is stored. HTTP headers have no case."""
        return self.name.lower()


def require_valid_secret(secret: McpSecret, field: str, *, is_header: bool = True) -> None:
    """Checks a value of a request.

    Raises:
        InvalidArgument: The value is too long, or no HTTP header (no environment variable) can have it.
    """
    if secret.value is not None:
        require_text(secret.value, f"{field}.value", min_chars=1, max_chars=MAX_VALUE_CHARS)
        if not is_header:
            require_no_nul(secret.value, f"{field}.value")
        elif not is_header_value(secret.value):
            raise InvalidArgument(f"{field}.value must be printable ASCII characters.", field=f"{field}.value")


def is_header_value(value: str) -> bool:
    """Returns whether an HTTP header can have the value."""
    return value.isascii() and value.isprintable()


def consists_of_variables(value: str) -> bool:
    """Returns whether a value has only variables without defaults, and so is no secret itself."""
    return _ONLY_VARIABLES.fullmatch(value.strip()) is not None


def require_valid_variables(variables: Mapping[str, str]) -> None:
    """Checks the variables of a caller.

    Raises:
        InvalidArgument: There are too many, or they are too long.
    """
    place = "caller.variables"
    if len(variables) > MAX_VARIABLES:
        raise InvalidArgument(f"{place} must have at most {MAX_VARIABLES} entries.", field=place)
    if sum(len(name) + len(value) for name, value in variables.items()) > MAX_VARIABLE_CHARS:
        raise InvalidArgument(f"{place} must be at most {MAX_VARIABLE_CHARS:,} characters.", field=place)


def variables_of(value: str) -> frozenset[str]:
    """Returns the names of the variables in a value."""
    return frozenset(match.group(1) for match in _VARIABLE.finditer(value))


def filled(value: str, variables: Mapping[str, str], missing: set[str]) -> str:
    """Returns a value with its variables replaced. Names without a value and a default are added to `missing`."""

    def one(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        if name in variables:
            return variables[name]
        if default is None:
            missing.add(name)
            return ""
        return default.strip()

    return _VARIABLE.sub(one, value)
