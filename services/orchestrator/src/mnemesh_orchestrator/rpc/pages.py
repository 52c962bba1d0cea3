"""Pages of lists in memory that are sorted by more than an id."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from mnemesh_kit.errors import NotFound
from mnemesh_kit.paging import Cursor, Page, PageQuery

T = TypeVar("T")
Position = tuple[str, str]
"""The sort key of a row, and its id, which breaks ties."""


def page_in_order(
    items: Sequence[T], visible: Iterable[T], query: PageQuery, position: Callable[[T], Position]
) -> Page[T]:
    """Returns one page.

    Args:
        items: The items of the list, in any order.
        visible: The items that `after_id` and `before_id` can name.
        query: The page.
        position: Returns the position of an item in the order.

    Raises:
        NotFound: `after_id` or `before_id` names an item that is not visible.
    """
    positions = {position(item)[1]: position(item) for item in visible}

    def anchor(field: str, id_: str) -> Position:
        if id_ not in positions:
            raise NotFound(f"{field} names no row of this list.", field=field, resource_id=id_)
        return positions[id_]

    bounds = [anchor("after_id", query.after_id)] if query.after_id is not None else []
    if query.cursor is not None:
        bounds.append((str(query.cursor.value), query.cursor.id))
    ordered = sorted(items, key=position, reverse=not query.ascending)
    for bound in bounds:
        ordered = [item for item in ordered if (position(item) > bound if query.ascending else position(item) < bound)]
    if query.before_id is not None:
        end = anchor("before_id", query.before_id)
        ordered = [item for item in ordered if (position(item) < end if query.ascending else position(item) > end)]
    page = tuple(ordered[: query.limit])
    return Page(page, tuple(Cursor(*position(item)) for item in page), len(ordered) > len(page))
