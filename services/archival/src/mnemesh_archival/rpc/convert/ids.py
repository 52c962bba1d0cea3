"""Ids in requests."""

from __future__ import annotations

from collections.abc import Sequence

from mnemesh_kit.ids import require_id


def archive_id_from_proto(value: str, field: str = "archive_id") -> str:
    """Returns an archive id. Raises InvalidArgument if it is not well-formed."""
    return require_id(value, "archive", field)


def agent_id_from_proto(value: str, field: str = "agent_id") -> str:
    """Returns an agent id. Raises InvalidArgument if it is not well-formed."""
    return require_id(value, "agent", field)


def agent_ids_from_proto(values: Sequence[str], field: str = "agent_ids") -> list[str]:
    """Returns agent ids. Raises InvalidArgument if one is not well-formed."""
    return [agent_id_from_proto(value, field) for value in values]


def passage_id_from_proto(value: str, field: str = "passage_id") -> str:
    """Returns a passage id. Raises InvalidArgument if it is not well-formed."""
    return require_id(value, "passage", field)
