"""Block filters as SQL conditions."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from mnemesh_blocks.store.base import BlockFilter
from mnemesh_blocks.store.sql.tables import block_identities, block_tags, blocks, holdings


def conditions(wanted: BlockFilter) -> Iterator[sa.ColumnElement[bool]]:
    """What a row of `blocks` must fulfil; the organization is the caller's condition."""
    for column, value in (
        (blocks.c.label, wanted.label),
        (blocks.c.name, wanted.name),
        (blocks.c.is_template, wanted.is_template),
        (blocks.c.hidden, wanted.hidden),
        (blocks.c.project_id, wanted.project_id),
        (blocks.c.template_id, wanted.template_id),
    ):
        if value is not None:
            yield column == value
    for column, text in (
        (blocks.c.label, wanted.label_search),
        (blocks.c.description, wanted.description_search),
        (blocks.c.value, wanted.value_search),
    ):
        if text is not None:
            yield column.icontains(text, autoescape=True)
    if wanted.block_ids:
        yield blocks.c.id.in_(wanted.block_ids)
    yield from _memberships(wanted)
    yield from _holder_counts(wanted)


def _memberships(wanted: BlockFilter) -> Iterator[sa.ColumnElement[bool]]:
    if wanted.agent_id is not None:
        yield blocks.c.id.in_(sa.select(holdings.c.block_id).where(holdings.c.agent_id == wanted.agent_id))
    if wanted.identity_id is not None:
        owned = sa.select(block_identities.c.block_id).where(block_identities.c.identity_id == wanted.identity_id)
        yield blocks.c.id.in_(owned)
    if wanted.tags_any:
        yield blocks.c.id.in_(sa.select(block_tags.c.block_id).where(block_tags.c.tag.in_(wanted.tags_any)))
    for tag in wanted.tags_all:
        yield blocks.c.id.in_(sa.select(block_tags.c.block_id).where(block_tags.c.tag == tag))


def _holder_counts(wanted: BlockFilter) -> Iterator[sa.ColumnElement[bool]]:
    holders = (
        sa.select(sa.func.count()).select_from(holdings).where(holdings.c.block_id == blocks.c.id).scalar_subquery()
    )
    if wanted.agents_more_than is not None:
        yield holders > wanted.agents_more_than
    if wanted.agents_fewer_than is not None:
        yield holders < wanted.agents_fewer_than
    if wanted.agents_exactly is not None:
        yield holders == wanted.agents_exactly
