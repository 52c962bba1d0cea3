"""Archives: their validation, and the changes of their embedders."""

import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_json_object, require_line, require_no_controls, require_text
from mnemesh_types.archival import Archive, ArchiveFilter


def require_no_control_characters(value: str, field: str, max_chars: int) -> str:
    """Returns `value`, which may be empty, if it has no control character and is not too long.

    Raises:
        InvalidArgument: it has a control character or more than `max_chars` code points.
    """
    require_text(value, field, max_chars=max_chars)
    if any(unicodedata.category(char) == "Cc" for char in value):
        raise InvalidArgument(f"{field} must not contain control characters.", field=field)
    return value


MAX_NAME_CHARS: Final = 500
MAX_DESCRIPTION_CHARS: Final = 10_000
MAX_METADATA_BYTES: Final = 100_000
MAX_FILTER_IDS: Final = 1_000
SUMMARY_TAGS: Final = 100
"""The largest number of tags in a summary."""
UPDATABLE_FIELDS: Final = frozenset({"name", "description", "metadata", "embedder", "deduplicate"})
CLIENT_PROVENANCE: Final = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
"""The fields of `Provenance` that clients set."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """The archives that the erasure of an agent deletes, in addition to those that were created for it."""

    shared_passages: bool = False
    """Also the passages that the agent wrote into archives that are kept."""
    unshared_archives: bool = False
    """Also the archives that were not created for the agent and that no other agent holds."""
    together_with: tuple[str, ...] = ()
    """Other agents that are erased too: also the archives that were created for them."""

    def deletes(self, archive: Archive, agent_id: str) -> bool:
        """Returns whether an archive that no other agent holds is deleted with this agent."""
        return self.unshared_archives or archive.created_for_agent_id in (agent_id, *self.together_with)


class EmbedderChange(Enum):
    """The way in which an update of `embedder` takes effect."""

    NONE = "none"
    """The same change is in progress."""
    CANCEL = "cancel"
    """The archive keeps its embedder; a change in progress is canceled."""
    SET = "set"
    """The embedder is set at once."""
    START = "start"
    """A change starts, which re-embeds the passages in the background."""


def decide_embedder_change(current: str, in_progress: str | None, wanted: str, *, has_passages: bool) -> EmbedderChange:
    """Decides how an archive gets another embedder.

    Args:
        current: the embedder that serves.
        in_progress: the new embedder of a change in progress.
        wanted: the requested embedder.
        has_passages: whether the archive has passages.
    """
    if wanted == current:
        return EmbedderChange.CANCEL
    if wanted == in_progress:
        return EmbedderChange.NONE
    return EmbedderChange.START if has_passages else EmbedderChange.SET


def validate_draft(draft: Archive) -> None:
    """Checks every field of a draft.

    Raises:
        InvalidArgument: a field has an invalid value.
    """
    require_line(draft.name, "archive.name", max_chars=MAX_NAME_CHARS)
    if draft.description is not None:
        require_no_controls(draft.description, "archive.description", max_chars=MAX_DESCRIPTION_CHARS)
    require_no_control_characters(draft.embedder, "archive.embedder", MAX_NAME_CHARS)
    if draft.metadata is not None:
        require_json_object(draft.metadata, "archive.metadata", max_bytes=MAX_METADATA_BYTES)
    for name in CLIENT_PROVENANCE:
        value = getattr(draft.provenance, name)
        if value is not None:
            require_no_control_characters(value, f"archive.provenance.{name}", MAX_NAME_CHARS)


def validate_update_fields(fields: Collection[str]) -> None:
    """Checks the field mask of an update.

    Raises:
        InvalidArgument: the mask is empty or names a field that cannot be updated.
    """
    if not fields or not UPDATABLE_FIELDS.issuperset(fields):
        names = ", ".join(sorted(UPDATABLE_FIELDS))
        raise InvalidArgument(f"update_mask must name one or more of {names}.", field="update_mask")


def validate_filter(filter_: ArchiveFilter) -> None:
    """Checks the limits of a filter.

    Raises:
        InvalidArgument: there are too many ids, or a name is too long or has control characters.
    """
    if len(filter_.archive_ids) > MAX_FILTER_IDS:
        raise InvalidArgument(
            f"filter.archive_ids must have at most {MAX_FILTER_IDS:,} values.", field="filter.archive_ids"
        )
    for name in ("name", "name_search"):
        value = getattr(filter_, name)
        if value is not None:
            require_no_control_characters(value, f"filter.{name}", MAX_NAME_CHARS)


def validate_agent_ids(agent_ids: Sequence[str], created_for_agent_id: str | None) -> None:
    """Checks the agents that a new archive is attached to.

    Raises:
        InvalidArgument: there are too many, or the agent that the archive is created for is not one of them.
    """
    if len(agent_ids) > MAX_FILTER_IDS:
        raise InvalidArgument(f"agent_ids must have at most {MAX_FILTER_IDS:,} values.", field="agent_ids")
    if created_for_agent_id is not None and created_for_agent_id not in agent_ids:
        raise InvalidArgument("created_for_agent_id must be one of agent_ids.", field="created_for_agent_id")
