"""Environment variables of tools: the rules of their names and values, and their encryption at rest."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.sealing import SecretBox, SecretUnreadable
from mnemesh_kit.text import require_text
from mnemesh_kit.time import Clock

MAX_VARIABLES: Final = 100
MAX_NAME_CHARS: Final = 128
MAX_VALUE_CHARS: Final = 30_000
"""The kernel passes at most 128 kB to a program as one variable, and a character has up to four bytes."""
MAX_TOTAL_CHARS: Final = 200_000

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED: Final = frozenset(
    {
        *("PATH", "HOME", "SHELL", "USER", "LOGNAME", "PWD", "TMPDIR", "TMP", "TEMP", "IFS", "ENV", "BASH_ENV"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NODE_OPTIONS", "NODE_PATH", "GCONV_PATH"),
        *("LOCPATH", "NLSPATH", "GLIBC_TUNABLES", "OPENSSL_CONF", "OPENSSL_MODULES", "PERL5LIB", "PERL5OPT"),
        *("RUBYLIB", "RUBYOPT", "SSLKEYLOGFILE"),
    }
)
_RESERVED_BEGINNINGS: Final = ("LD_", "DYLD_", "PYTHON", "MNEMESH_", "MALLOC_", "NPM_CONFIG_", "UV_", "PIP_")


@dataclass(frozen=True, slots=True)
class SecretVariable:
    """A variable of a tool or an agent."""

    name: str
    sealed: bytes | None = field(repr=False)
    """The encrypted value. None keeps the stored one; no stored variable has None."""
    updated_at: datetime
    """The time of the last change of the value."""


class SecretVariables:
    """Encrypts each value for the one owner that it belongs to, and decrypts it for an execution."""

    def __init__(self, box: SecretBox, clock: Clock) -> None:
        self._box = box
        self._clock = clock

    def fingerprint(self, value: str) -> str:
        """Returns a text that identifies a value and reveals nothing of it. Raises SecretsKeyMissing."""
        return self._box.fingerprint(value)

    def sealed(self, owner: str, values: Mapping[str, str | None]) -> tuple[SecretVariable, ...]:
        """Returns the variables with these values, which `require_valid_variables` has checked.

        Args:
            owner: The id of the tool or the agent.
            values: The values by name. None keeps the stored value.

        Raises:
            SecretsKeyMissing: This server has no key to store secrets with.
        """
        now = self._clock.now()
        return tuple(
            SecretVariable(name, None if value is None else self._box.seal(value, _context(owner, name)), now)
            for name, value in values.items()
        )

    def merged(
        self, owner: str, stored: Iterable[SecretVariable], changes: Sequence[SecretVariable], place: str
    ) -> tuple[SecretVariable, ...]:
        """Returns the variables of an owner after they were replaced by `changes`.

        A variable whose value does not change stays as it is stored.

        Args:
            owner: The id of the tool or the agent.
            stored: Its variables.
            changes: All variables that it has from now on.
            place: The field of the request, for errors.

        Raises:
            InvalidArgument: A variable has no value, and none is stored under its name.
        """
        known = {variable.name: variable for variable in stored}

        def kept(change: SecretVariable) -> SecretVariable:
            before = known.get(change.name)
            if change.sealed is None:
                if before is None:
                    raise InvalidArgument(f"{place}: {change.name} has no value. Set one.", field=place)
                return before
            return change if before is None or self._differ(owner, before, change) else before

        return tuple(kept(change) for change in changes)

    def opened(self, owner: str, variables: Iterable[SecretVariable]) -> dict[str, str]:
        """Returns the values by name.

        Raises:
            SecretUnreadable: A value cannot be decrypted with the keys of this server.
        """
        return {
            variable.name: self._box.open(variable.sealed or b"", _context(owner, variable.name))
            for variable in variables
        }

    def resealed(self, owner: str, variables: Sequence[SecretVariable]) -> tuple[SecretVariable, ...]:
        """Returns the variables encrypted with the first key. Raises SecretUnreadable."""
        return tuple(
            replace(variable, sealed=self._box.resealed(variable.sealed or b"", _context(owner, variable.name)))
            for variable in variables
        )

    def _differ(self, owner: str, one: SecretVariable, other: SecretVariable) -> bool:
        try:
            return self.opened(owner, [one]) != self.opened(owner, [other])
        except SecretUnreadable:
            return True


def require_valid_variables(values: Mapping[str, str | None], place: str) -> None:
    """Checks the environment variables of a request.

    Args:
        values: The values by name; None for a value that is not part of the request.
        place: The field of the request.

    Raises:
        InvalidArgument: A name or a value breaks its rule, or there are too many.
    """
    if len(values) > MAX_VARIABLES:
        raise InvalidArgument(f"{place} must have at most {MAX_VARIABLES} entries.", field=place)
    for name, value in values.items():
        _require_valid_name(name, place)
        if value is not None:
            require_text(value, f"{place}.{name}", max_chars=MAX_VALUE_CHARS)
    if sum(len(name) + len(value or "") for name, value in values.items()) > MAX_TOTAL_CHARS:
        raise InvalidArgument(f"{place} must be at most {MAX_TOTAL_CHARS:,} characters together.", field=place)


def _require_valid_name(name: str, place: str) -> None:
    if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{place}: {name[:64]!a} is not the name of an environment variable. Use at most {MAX_NAME_CHARS} letters, "
            "digits and underscores, and no digit at the beginning.",
            field=place,
        )
    if name.upper() in _RESERVED or name.upper().startswith(_RESERVED_BEGINNINGS):
        raise InvalidArgument(
            f"{place}: {name} changes how programs start and must not be set. Use another name.", field=place
        )


def _context(owner: str, name: str) -> str:
    return f"variable/{owner}/{name}"
