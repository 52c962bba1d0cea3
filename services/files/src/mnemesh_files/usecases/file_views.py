"""The texts of windows, rendered once per text, window and limit."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from mnemesh_files.model.agent_files import Directories, HeldFile, ShownFile
from mnemesh_files.model.views import RenderedView, rendered
from mnemesh_files.model.windows import FileLimits, Window, shown_characters, view_of
from mnemesh_files.store.base.agent_files import TextStore

_KEPT_CHARACTERS: Final = 20_000_000
"""The characters of the texts that are kept."""

_Key = tuple[str, str, str, Window, int]


class TextGone(Exception):
    """The text of a file was replaced since the file was read. The caller reads the file again."""


class FileViews:
    """Renders the windows of files."""

    def __init__(self, texts: TextStore) -> None:
        self._texts = texts
        self._kept: OrderedDict[_Key, RenderedView] = OrderedDict()
        self._size = 0

    async def shown(self, organization_id: str, file: HeldFile, limits: FileLimits) -> ShownFile:
        """Returns a file with its view, and the text of its window if it is open.

        Raises:
            TextGone: the text was replaced meanwhile.
        """
        view = None if file.window is None else view_of(file.window, file.total_lines, file.page_starts)
        if not file.is_open or file.window is None:
            return ShownFile(file, view)
        found = await self._rendered(organization_id, file, file.window, shown_characters(limits))
        return ShownFile(file, view, found.text, found.truncated)

    async def open_of(self, organization_id: str, directories: Directories) -> dict[str, ShownFile]:
        """Returns the open files of directories by id. Raises TextGone."""
        opened = [file for folder in directories.folders for file in folder.files if file.is_open]
        shown = [await self.shown(organization_id, file, directories.limits) for file in opened]
        return {each.file.file_id: each for each in shown}

    async def _rendered(self, organization_id: str, file: HeldFile, window: Window, limit: int) -> RenderedView:
        if file.text_id is None or (file.is_image and not file.total_lines):
            return _without_text(file, limit)
        key = (organization_id, file.file_id, file.text_id, window, limit)
        known = self._kept.get(key)
        if known is None:
            known = await self._render(organization_id, file, file.text_id, window, limit)
            self._keep(key, known)
        else:
            self._kept.move_to_end(key)
        return known

    async def _render(
        self, organization_id: str, file: HeldFile, text_id: str, window: Window, limit: int
    ) -> RenderedView:
        lines: list[str] = []
        if file.total_lines:
            last = max(window.first, window.last(file.total_lines))
            found = await self._texts.lines(organization_id, file.file_id, text_id, window.first, last, limit)
            if found is None:
                raise TextGone
            lines = found
        return rendered(lines, window, file.total_lines, file.style, limit, file.page_starts)

    def _keep(self, key: _Key, view: RenderedView) -> None:
        self._kept[key] = view
        self._size += len(view.text)
        while self._size > _KEPT_CHARACTERS:
            _, dropped = self._kept.popitem(last=False)
            self._size -= len(dropped.text)


def _without_text(file: HeldFile, limit: int) -> RenderedView:
    """Returns what is shown of a file without a text, such as an image."""
    if file.is_image:
        text = f"[Image of the type {file.media_type}, {file.size_bytes:,} bytes. It has no text.]"
    else:
        text = f"[The text of the file is not available: its status is {file.status.name}.]"
    return RenderedView(text[:limit], truncated=len(text) > limit)
