"""The subjects that created and last changed a resource, and ids that clients store with it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from mnemesh_kit.text import require_line

MAX_ID_CHARS: Final = 500


@dataclass(frozen=True, slots=True)
class Provenance:
    """The subjects that created and last changed a resource, and ids that clients store with it."""

    created_by_id: str = ""
    last_updated_by_id: str = ""
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None


PROVENANCE: Final = tuple(each.name for each in fields(Provenance))
"""The fields of `Provenance`, which are columns of the tables of folders and files."""
CLIENT_PROVENANCE: Final = PROVENANCE[2:]
"""The fields that clients set."""


def validate_provenance(provenance: Provenance, field: str) -> None:
    """Checks the ids that clients set.

    Raises:
        InvalidArgument: one is blank, too long, or has control characters.
    """
    for name in CLIENT_PROVENANCE:
        value = getattr(provenance, name)
        if value is not None:
            require_line(value, f"{field}.{name}", max_chars=MAX_ID_CHARS)
