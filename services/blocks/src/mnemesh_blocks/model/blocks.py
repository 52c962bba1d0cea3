"""Blocks: the rules for their attributes and their authors, and the history of their values."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.text import require_json_object, require_no_nul, require_optional_text, require_text, require_texts
from mnemesh_types.blocks import AgentAuthor, Author, Block, BlockFilter, BlockOperation, BlockRevision, OwnerAuthor

from mnemesh_blocks.errors import BlockLimitExceeded, BlockReadOnly, BlockRevisionMismatch

MAX_CALL_ID: Final = 1000


def author_id(author: Author) -> str:
    """Returns the id of the agent or of the subject."""
    return author.subject_id if isinstance(author, OwnerAuthor) else author.agent_id


def require_valid_author(author: Author) -> Author:
    """Returns `author` if its ids can be stored.

    Raises:
        InvalidArgument: An id is malformed or too long.
    """
    if isinstance(author, AgentAuthor):
        require_id(author.agent_id, "agent", "author.agent.agent_id")
        require_optional_text(author.tool_call_id, "author.agent.tool_call_id", max_chars=MAX_CALL_ID)
        require_optional_text(author.run_id, "author.agent.run_id", max_chars=MAX_CALL_ID)
    return author


DEFAULT_LIMIT: Final = 20_000
MAX_TAGS: Final = 100
MAX_TAG: Final = 200
MAX_TEXT: Final = 1_000_000
"""The maximum characters of a description, a name or metadata. A value has the block's own limit."""
MAX_SEARCH: Final = 10_000
"""The maximum characters of one text in a filter."""
_LABEL: Final = re.compile(r"[A-Za-z0-9_\-./]{1,100}")
_DEFAULT_DESCRIPTIONS: Final = {
    "human": "What is known about the person in this conversation: name, life, wishes and how to speak with them.",
    "persona": "Who the agent is: its character, its manner and what it holds to in every conversation.",
}


class BlockOrder(StrEnum):
    """The keys that lists of blocks can be sorted by."""

    CREATE_TIME = "create_time"
    UPDATE_TIME = "update_time"
    LABEL = "label"


def require_valid(block: Block) -> Block:
    """Returns `block` if it follows every rule of a block.

    Raises:
        BlockLimitExceeded: The value has more characters than the limit.
        InvalidArgument: A field breaks its rule.
    """
    if not _LABEL.fullmatch(block.label):
        raise InvalidArgument(
            'block.label must have 1 to 100 letters, digits, "_", "-", "." or "/".', field="block.label"
        )
    if block.limit < 1:
        raise InvalidArgument("block.limit must be at least 1 character.", field="block.limit")
    require_no_nul(block.value, "block.value")
    for name in ("description", "name", "template_name", "metadata"):
        require_text(getattr(block, name) or "", f"block.{name}", max_chars=MAX_TEXT)
    for name in ("tags", "identity_ids"):
        require_texts(
            getattr(block, name), f"block.{name}", max_items=MAX_TAGS, min_chars=1, max_chars=MAX_TAG, distinct=True
        )
    if block.metadata is not None:
        require_json_object(block.metadata, "block.metadata")
    if len(block.value) > block.limit:
        raise BlockLimitExceeded(block.label, block.limit, len(block.value))
    return block


def require_valid_filter(filter_: BlockFilter) -> BlockFilter:
    """Returns `filter_` if each of its texts can be searched for.

    Raises:
        InvalidArgument: A text is too long or contains a NUL character.
    """
    for name in BlockFilter.__dataclass_fields__:
        value = getattr(filter_, name)
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str):
                require_text(text, f"filter.{name}", max_chars=MAX_SEARCH)
    return filter_


def require_writable(block: Block, author: Author) -> Block:
    """Returns `block` if `author` may edit it.

    Raises:
        BlockReadOnly: The author is an agent and the block is read-only.
    """
    if block.read_only and isinstance(author, AgentAuthor):
        raise BlockReadOnly(block.label)
    return block


def require_revision(block: Block, base_revision: int | None) -> Block:
    """Returns `block` if it is at `base_revision`; None skips the check.

    Raises:
        BlockRevisionMismatch: The block has another revision.
    """
    if base_revision is not None and base_revision != block.revision:
        raise BlockRevisionMismatch(block.label, block.revision, block.value)
    return block


def next_revision(
    block: Block, at: datetime, by: str, *, provenance: Mapping[str, Any] | None = None, **changes: Any
) -> Block:
    """Returns the next revision of `block`, validated.

    Args:
        block: The current block.
        at: The time of the change.
        by: The id of the subject or agent that makes the change.
        provenance: New values of the provenance ids.
        changes: New values of the block's own fields.

    Raises:
        BlockLimitExceeded: The value is longer than the limit.
        InvalidArgument: A field breaks its rule.
    """
    origin = replace(block.provenance, **(provenance or {}), last_updated_by_id=by)
    return require_valid(replace(block, **changes, revision=block.revision + 1, updated_at=at, provenance=origin))


def copy_block(block: Block, block_id: str, subject_id: str, now: datetime) -> Block:
    """Returns a hidden block with the same content and a new history that starts at revision 1."""
    return replace(
        block,
        id=block_id,
        revision=1,
        content_revision=1,
        hidden=True,
        created_for_agent_id=None,
        created_at=now,
        updated_at=now,
        provenance=replace(block.provenance, created_by_id=subject_id, last_updated_by_id=subject_id),
    )


def default_description(label: str) -> str | None:
    """Returns the description of a block that its creator does not describe."""
    return _DEFAULT_DESCRIPTIONS.get(label)


@dataclass(frozen=True, slots=True)
class ToRevision:
    """A revision by its number. Reverting to it is a change that can itself be undone."""

    revision: int
    operation: ClassVar = BlockOperation.REVERT


@dataclass(frozen=True, slots=True)
class Undo:
    """The value before the one that the block shows."""

    operation: ClassVar = BlockOperation.UNDO


@dataclass(frozen=True, slots=True)
class Redo:
    """The value that the last undo replaced."""

    operation: ClassVar = BlockOperation.REDO


RevertTarget = ToRevision | Undo | Redo


def revision_of(block: Block, operation: BlockOperation, author: Author, parent: int | None = None) -> BlockRevision:
    """Returns the history entry of the change that led to `block`."""
    return BlockRevision(
        block_id=block.id,
        revision=block.revision,
        operation=operation,
        label=block.label,
        value=block.value,
        description=block.description,
        limit=block.limit,
        read_only=block.read_only,
        author=author,
        created_at=block.updated_at,
        parent_revision=parent,
    )


def diff_of(revision: int, before: str, after: str) -> str:
    """Returns the unified diff of the value that a revision replaced and its own."""
    names = (f"revision {revision - 1}", f"revision {revision}")
    return "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm=""))


def block_at_revision(block: Block, revision: BlockRevision) -> Block:
    """Returns `block` with the recorded fields as they were at `revision`, and the other fields as they are now."""
    return replace(
        block,
        revision=revision.revision,
        label=revision.label,
        value=revision.value,
        description=revision.description,
        limit=revision.limit,
        read_only=revision.read_only,
        updated_at=revision.created_at,
    )
