"""Pages of lists that are in memory anyway, and sorted by more than an id."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from mnemesh_kit.errors import NotFound
from mnemesh_kit.paging import Cursor, Page, PageQuery

T = TypeVar("T")
Place = tuple[str, str]
"""What a row is sorted by, and its id, which breaks ties."""


def page_in_order(items: Sequence[T], visible: Iterable[T], query: PageQuery, place: Callable[[T], Place]) -> Page[T]:
    """One page of all items, in any order they come.

    Args:
        items: all that match.
        visible: all that `after_id` and `before_id` may name.
        query: which page.
        place: where an item is in the order.

    Raises:
        NotFound: `after_id` or `before_id` names none of them.
    """
    places = {place(item)[1]: place(item) for item in visible}

    def anchor(field: str, id_: str) -> Place:
        if id_ not in places:
            raise NotFound(f"{field} names no row of this list.", field=field, resource_id=id_)
        return places[id_]

    bounds = [anchor("after_id", query.after_id)] if query.after_id is not None else []
    if query.cursor is not None:
        bounds.append((str(query.cursor.value), query.cursor.id))
    ordered = sorted(items, key=place, reverse=not query.ascending)
    for bound in bounds:
        ordered = [item for item in ordered if (place(item) > bound if query.ascending else place(item) < bound)]
    if query.before_id is not None:
        end = anchor("before_id", query.before_id)
        ordered = [item for item in ordered if (place(item) < end if query.ascending else place(item) > end)]
    shown = tuple(ordered[: query.limit])
    return Page(shown, Cursor(*place(shown[-1])) if len(ordered) > len(shown) else None)
