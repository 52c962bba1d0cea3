"""The use cases of what agents hold: folders, open files, limits, and what their prompts show of them."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

import structlog
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import DeadlineExceeded, InvalidArgument, MnemeshError, NotFound, ResourceExhausted, Unavailable
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import derive_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.time import Clock
from mnemesh_types.files import FileLimits, Folder

from mnemesh_files.clients import AgentsClient
from mnemesh_files.model.agent_files import (
    MAX_REFERENCES,
    AgentFileFilter,
    AgentFileOrder,
    Announcement,
    Attachment,
    Directories,
    FileReference,
    FileRequest,
    HeldFile,
    Opening,
    RenderedView,
    ShownFile,
    Window,
    rendered,
    require_valid_limits,
    shown_characters,
    view_of,
)
from mnemesh_files.store.agent_files import AgentFileStore, AnnouncementStore
from mnemesh_files.store.ingestion import TextStore

RETRY_SECONDS: Final = 2.0
BATCH: Final = 100
_WAIT_SECONDS: Final = 2.0
"""How long a change of folders waits until the orchestrator knows it."""
_SUBJECT: Final = derive_id("user", "files")

_log = structlog.get_logger("mnemesh.files")

_KEPT_CHARACTERS: Final = 20_000_000
"""The characters of the texts that are kept."""

_Key = tuple[str, str, str, Window, int]

MAX_BATCH_AGENTS: Final = 1_000
_MAX_BATCH_CHARACTERS: Final = 2_000_000
_READS: Final = 5
"""How often a read begins again because the text of a file was replaced meanwhile."""


class Announcer:
    """Tells the orchestrator once per change between holding folders and holding none.

    What is to be told is stored with the change, so that it survives an outage and a crash.
    """

    def __init__(self, store: AnnouncementStore, agents: AgentsClient, clock: Clock) -> None:
        self._store = store
        self._agents = agents
        self._clock = clock
        self._is_away = False

    async def announce(self, organization_id: str, agent_id: str) -> None:
        """Tells the orchestrator about an agent if there is news, so that the agent's next turn knows its folders.

        If the orchestrator does not answer, `announce_due` tells it later; then further calls do not wait.
        """
        announcement = await self._store.announcement(organization_id, agent_id)
        if announcement is None or self._is_away:
            return
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._tell(announcement)
        except TimeoutError:
            self._is_away = True

    async def announce_due(self) -> None:
        """Tells the orchestrator all that is due. If it does not answer, all of it stays due."""
        for announcement in await self._store.due_announcements(BATCH):
            await self._tell(announcement)
            if self._is_away:
                return

    async def _tell(self, announcement: Announcement) -> None:
        try:
            with as_principal(Principal(announcement.organization_id, _SUBJECT)):
                await self._agents.record_folders(
                    announcement.agent_id, announcement.revision, holds_folders=announcement.holds_folders
                )
        except NotFound:
            _log.info("announcement_dropped", agent_id=announcement.agent_id)
        except (Unavailable, DeadlineExceeded) as error:
            self._is_away = True
            _log.info("announcement_failed", agent_id=announcement.agent_id, error=error.message)
            return
        except MnemeshError as error:
            # The agent is being created, for example.
            _log.info("announcement_postponed", agent_id=announcement.agent_id, error=error.message)
            await self._store.record_announcement(announcement, at=self._clock.now() + timedelta(seconds=RETRY_SECONDS))
            return
        self._is_away = False
        await self._store.record_announcement(announcement, at=None)


class TextGone(Exception):
    """The text of a file was replaced since the file was read. The caller reads the file again."""


class FileViews:
    """Renders the windows of files."""

    def __init__(self, texts: TextStore) -> None:
        self._texts = texts
        self._kept: OrderedDict[_Key, RenderedView] = OrderedDict()
        self._size = 0

    async def show(self, organization_id: str, file: HeldFile, limits: FileLimits) -> ShownFile:
        """Returns a file with its view, and the text of its window if it is open.

        Raises:
            TextGone: the text was replaced meanwhile.
        """
        view = None if file.window is None else view_of(file.window, file.total_lines, file.page_starts)
        if not file.is_open or file.window is None:
            return ShownFile(file, view)
        found = await self._find_or_render(organization_id, file, file.window, shown_characters(limits))
        return ShownFile(file, view, found.text, found.truncated)

    async def open_of(self, organization_id: str, directories: Directories) -> dict[str, ShownFile]:
        """Returns the open files of directories by id. Raises TextGone."""
        opened = [file for folder in directories.folders for file in folder.files if file.is_open]
        shown = [await self.show(organization_id, file, directories.limits) for file in opened]
        return {each.file.file_id: each for each in shown}

    async def _find_or_render(self, organization_id: str, file: HeldFile, window: Window, limit: int) -> RenderedView:
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


class AgentFileService:
    """What agents of the caller's organization hold. Mutations take the request's idempotency key, or None."""

    def __init__(self, store: AgentFileStore, views: FileViews, announcer: Announcer) -> None:
        self._store = store
        self._views = views
        self._announcer = announcer

    async def attach(
        self, caller: Principal, agent_id: str, folder_id: str, key: RequestKey | None, *, opens_files: bool
    ) -> Attachment:
        """Attaches a folder to an agent. See AgentFileStore.attach."""
        done = await self._store.attach(caller.organization_id, agent_id, folder_id, key, opens_files=opens_files)
        await self._announcer.announce(caller.organization_id, agent_id)
        return done

    async def detach(self, caller: Principal, agent_id: str, folder_id: str, key: RequestKey | None) -> Attachment:
        """Detaches a folder from an agent. See AgentFileStore.detach."""
        done = await self._store.detach(caller.organization_id, agent_id, folder_id, key)
        await self._announcer.announce(caller.organization_id, agent_id)
        return done

    async def list_folders(self, caller: Principal, agent_id: str, page: PageQuery, *, by_name: bool) -> Page[Folder]:
        return await self._store.list_folders(caller.organization_id, agent_id, page, by_name=by_name)

    async def list_files(
        self,
        caller: Principal,
        agent_id: str,
        filter_: AgentFileFilter,
        page: PageQuery,
        order: AgentFileOrder,
        *,
        with_text: bool,
    ) -> Page[ShownFile]:
        """Returns a page of the files of an agent, with the texts of open ones if `with_text`."""
        for _ in range(_READS):
            found = await self._store.list_files(caller.organization_id, agent_id, filter_, page, order)
            if not with_text:
                return found.map(_unread)
            limits = await self._store.limits(caller.organization_id, agent_id)
            try:
                shown = [await self._views.show(caller.organization_id, file, limits) for file in found.items]
            except TextGone:
                continue
            return found.with_items(shown)
        raise _changing()

    async def open_files(
        self,
        caller: Principal,
        agent_id: str,
        requests: Sequence[FileRequest],
        key: RequestKey | None,
        *,
        close_others: bool,
    ) -> tuple[Opening, list[ShownFile]]:
        """Opens windows into files. Returns the effect and the files in request order, as they are shown now."""
        opening = await self._store.open_files(
            caller.organization_id, agent_id, requests, key, close_others=close_others
        )
        return opening, await self._show_opened(caller, agent_id, opening)

    async def _show_opened(self, caller: Principal, agent_id: str, opening: Opening) -> list[ShownFile]:
        """Returns the files of an opening. A file that the agent does not hold any more is left out."""
        ids = [each.file_id for each in opening.opened]
        for _ in range(_READS):
            held = await self._store.find_held(caller.organization_id, agent_id, ids)
            limits = await self._store.limits(caller.organization_id, agent_id)
            files = [
                replace(held[each.file_id], window=each.window, is_open=True)
                for each in opening.opened
                if each.file_id in held
            ]
            try:
                return [await self._views.show(caller.organization_id, file, limits) for file in files]
            except TextGone:
                continue
        raise _changing()

    async def close_files(
        self, caller: Principal, agent_id: str, files: Sequence[FileReference] | None, key: RequestKey | None
    ) -> tuple[tuple[str, ...], int]:
        """Closes files; None closes all. See AgentFileStore.close_files."""
        if files is not None and not 1 <= len(files) <= MAX_REFERENCES:
            raise InvalidArgument(f"files must have 1 to {MAX_REFERENCES:,} values, or all must be set.", field="files")
        return await self._store.close_files(caller.organization_id, agent_id, files, key)

    async def set_limits(
        self, caller: Principal, agent_id: str, limits: FileLimits | None, key: RequestKey | None
    ) -> tuple[FileLimits, tuple[str, ...], int]:
        """Sets the limits of an agent, or removes them. See AgentFileStore.set_limits. Raises InvalidArgument."""
        valid = None if limits is None else require_valid_limits(limits)
        return await self._store.set_limits(caller.organization_id, agent_id, valid, key)

    async def directories(
        self, caller: Principal, agent_id: str, if_revision: int | None = None
    ) -> tuple[Directories, dict[str, ShownFile]] | None:
        """Returns what the prompt of an agent shows, with the open files by id; None at `if_revision`."""
        for _ in range(_READS):
            found = await self._store.directories(caller.organization_id, agent_id, if_revision)
            if found is None:
                return None
            try:
                return found, await self._views.open_of(caller.organization_id, found)
            except TextGone:
                continue
        raise _changing()

    async def batch_directories(
        self, caller: Principal, agent_ids: Sequence[str]
    ) -> list[tuple[Directories, dict[str, ShownFile]]]:
        """Returns the directories of agents in this order.

        Raises:
            InvalidArgument: there are too many agents.
            ResourceExhausted: the response would be too large.
        """
        if len(agent_ids) > MAX_BATCH_AGENTS:
            raise InvalidArgument(f"agent_ids must have at most {MAX_BATCH_AGENTS:,} values.", field="agent_ids")
        size, all_found = 0, []
        for agent_id in agent_ids:
            found = await self.directories(caller, agent_id)
            if found is None:
                continue  # only with a revision
            all_found.append(found)
            size += sum(len(shown.text) for shown in found[1].values())
            size += sum(len(file.name) for folder in found[0].folders for file in folder.files)
            if size > _MAX_BATCH_CHARACTERS:
                raise ResourceExhausted(
                    f"The directories of {len(agent_ids)} agents are larger than a response. Ask for fewer agents.",
                    field="agent_ids",
                )
        return all_found

    async def holders(self, caller: Principal, folder_id: str, page: PageQuery) -> Page[str]:
        """Returns a page of the ids of the agents that hold a folder."""
        return await self._store.holders(caller.organization_id, folder_id, page)

    async def erase_agent(self, caller: Principal, agent_id: str, key: RequestKey | None) -> tuple[int, int]:
        """Erases an agent. Returns the numbers of folders and files that it held."""
        return await self._store.erase(caller.organization_id, agent_id, key)


def _unread(file: HeldFile) -> ShownFile:
    view = None if file.window is None else view_of(file.window, file.total_lines, file.page_starts)
    return ShownFile(file, view)


def _changing() -> Unavailable:
    return Unavailable("The files of the agent are changing all the time. Try again.")
