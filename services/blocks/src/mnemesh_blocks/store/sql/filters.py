"""Block filters as SQL conditions."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from mnemesh_blocks.model.blocks import BlockFilter
from mnemesh_blocks.store.sql.tables import block_identities, block_tags, blocks, holdings


def conditions(filter_: BlockFilter) -> Iterator[sa.ColumnElement[bool]]:
    """Returns the conditions on a row of `blocks`. The caller adds the one on the organization."""
    for column, value in (
        (blocks.c.label, filter_.label),
        (blocks.c.name, filter_.name),
        (blocks.c.is_template, filter_.is_template),
        (blocks.c.hidden, filter_.hidden),
        (blocks.c.project_id, filter_.project_id),
        (blocks.c.template_id, filter_.template_id),
    ):
        if value is not None:
            yield column == value
    for column, text in (
        (blocks.c.label, filter_.label_search),
        (blocks.c.description, filter_.description_search),
        (blocks.c.value, filter_.value_search),
    ):
        if text is not None:
            yield column.icontains(text, autoescape=True)
    if filter_.block_ids:
        yield blocks.c.id.in_(filter_.block_ids)
    yield from _memberships(filter_)
    yield from _holder_counts(filter_)


def _memberships(filter_: BlockFilter) -> Iterator[sa.ColumnElement[bool]]:
    if filter_.agent_id is not None:
        yield blocks.c.id.in_(sa.select(holdings.c.block_id).where(holdings.c.agent_id == filter_.agent_id))
    if filter_.identity_id is not None:
        owned = sa.select(block_identities.c.block_id).where(block_identities.c.identity_id == filter_.identity_id)
        yield blocks.c.id.in_(owned)
    if filter_.tags_any:
        yield blocks.c.id.in_(sa.select(block_tags.c.block_id).where(block_tags.c.tag.in_(filter_.tags_any)))
    for tag in filter_.tags_all:
        yield blocks.c.id.in_(sa.select(block_tags.c.block_id).where(block_tags.c.tag == tag))


def _holder_counts(filter_: BlockFilter) -> Iterator[sa.ColumnElement[bool]]:
    holders = (
        sa.select(sa.func.count()).select_from(holdings).where(holdings.c.block_id == blocks.c.id).scalar_subquery()
    )
    if filter_.agents_more_than is not None:
        yield holders > filter_.agents_more_than
    if filter_.agents_fewer_than is not None:
        yield holders < filter_.agents_fewer_than
    if filter_.agents_exactly is not None:
        yield holders == filter_.agents_exactly
