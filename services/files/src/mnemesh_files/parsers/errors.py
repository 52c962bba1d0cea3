"""The errors of parsing. Their texts are for the owner of the file."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """Why a document cannot be parsed."""

    UNSUPPORTED = "unsupported"
    """No parser reads its format."""
    ENCRYPTED = "encrypted"
    """It needs a password."""
    DAMAGED = "damaged"
    """It breaks the rules of its format."""
    TOO_LARGE = "too_large"
    """It exceeds a limit of size: bytes, expansion, pixels, nesting, memory."""
    TOO_SLOW = "too_slow"
    """It exceeds a limit of time."""
    FAILED = "failed"
    """The parser failed. The log has the details."""


class DocumentUnreadable(Exception):
    """The document cannot be parsed. Trying again does not help.

    The message names cause and remedy. It is stored as the `error_message` of the file.
    """

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message


class ParserUnavailable(Exception):
    """This host cannot run the parser: it isolates processes less than the operator requires.

    Plain text is parsed nevertheless. Another host, or a lower MNEMESH_FILES_MIN_SANDBOX, parses the document.
    """
