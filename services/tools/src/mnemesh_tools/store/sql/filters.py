"""Tool filters as SQL conditions."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from mnemesh_tools.model.tools import ToolFilter
from mnemesh_tools.store.sql.tables import tool_tags, tools


def conditions(organization_id: str, filter_: ToolFilter) -> Iterator[sa.ColumnElement[bool]]:
    """Returns the conditions on a row of `tools`. The caller adds the one on the organization."""
    if filter_.tool_ids:
        yield tools.c.id.in_(filter_.tool_ids)
    if filter_.names:
        yield tools.c.name.in_(filter_.names)
    if filter_.types:
        yield tools.c.type.in_([item.value for item in filter_.types])
    if filter_.exclude_types:
        yield tools.c.type.not_in([item.value for item in filter_.exclude_types])
    if filter_.text_search:
        yield tools.c.search_text.contains(filter_.text_search.casefold(), autoescape=True)
    if filter_.tags_any:
        tagged = sa.select(tool_tags.c.tool_id).where(
            tool_tags.c.organization_id == organization_id, tool_tags.c.tag.in_(filter_.tags_any)
        )
        yield tools.c.id.in_(tagged)
    if filter_.mcp_server_id is not None:
        yield tools.c.mcp_server_id == filter_.mcp_server_id
