"""The rules that every block keeps, whoever writes it: label, limit, no NUL characters, JSON metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from mnemesh_kit.errors import InvalidArgument

from mnemesh_blocks.errors import BlockLimitExceeded
from mnemesh_blocks.model.blocks import Block

MAX_TAGS: Final = 100
MAX_TAG: Final = 200
MAX_TEXT: Final = 1_000_000
"""Characters of a description, a name or metadata; a value has the block's own limit."""
_LABEL: Final = re.compile(r"[A-Za-z0-9_\-./]{1,100}")
_DEFAULT_DESCRIPTIONS: Final = {
    "human": "What is known about the person in this conversation: name, life, wishes and how to speak with them.",
    "persona": "Who the agent is: its character, its manner and what it holds to in every conversation.",
}


def checked(block: Block) -> Block:
    """Returns `block` if it keeps every rule of a block.

    Raises:
        BlockLimitExceeded: the value has more characters (Unicode code points) than the limit.
        InvalidArgument: a field breaks its rule.
    """
    if not _LABEL.fullmatch(block.label):
        raise InvalidArgument('A label has 1 to 100 of letters, digits, "_", "-", "." and "/".', field="block.label")
    if block.limit < 1:
        raise InvalidArgument("A block's limit must be at least 1 character.", field="block.limit")
    for name in ("value", "description", "name", "template_name", "metadata"):
        text = without_nul(getattr(block, name) or "", f"block.{name}")
        if name != "value" and len(text) > MAX_TEXT:
            raise InvalidArgument(f"{name} may have at most {MAX_TEXT} characters.", field=f"block.{name}")
    for name in ("tags", "identity_ids"):
        values: tuple[str, ...] = getattr(block, name)
        if len(values) > MAX_TAGS or len(set(values)) < len(values) or not all(values):
            raise InvalidArgument(f"{name} must be at most {MAX_TAGS}, distinct and not empty.", field=f"block.{name}")
        if any(len(value) > MAX_TAG for value in values):
            raise InvalidArgument(f"Each of {name} may have at most {MAX_TAG} characters.", field=f"block.{name}")
        without_nul("".join(values), f"block.{name}")
    if block.metadata is not None:
        _require_object(block.metadata)
    if len(block.value) > block.limit:
        raise BlockLimitExceeded(block.label, block.limit, len(block.value))
    return block


def without_nul(text: str, field: str) -> str:
    """Returns `text`; refuses NUL characters, which PostgreSQL cannot store."""
    if "\0" in text:
        raise InvalidArgument("The text contains a NUL character.", field=field)
    return text


def default_description(label: str) -> str | None:
    """What a block with this label is for, where its creator does not say."""
    return _DEFAULT_DESCRIPTIONS.get(label)


def _require_object(text: str) -> None:
    try:
        is_object = isinstance(json.loads(text), dict)
    except ValueError:
        is_object = False
    if not is_object:
        raise InvalidArgument("metadata must be a JSON object.", field="block.metadata")


def changed(block: Block, at: datetime, by: str, *, carried: Mapping[str, Any] | None = None, **changes: Any) -> Block:
    """The next revision of `block`, checked.

    Args:
        block: the block as it is.
        at: the time of the change.
        by: who makes it, a subject or an agent.
        carried: new values of the provenance ids.
        changes: new values of the block's own fields.

    Raises:
        BlockLimitExceeded: the value is longer than the limit.
        InvalidArgument: a field breaks its rule.
    """
    origin = replace(block.provenance, **(carried or {}), last_updated_by_id=by)
    return checked(replace(block, **changes, revision=block.revision + 1, updated_at=at, provenance=origin))
