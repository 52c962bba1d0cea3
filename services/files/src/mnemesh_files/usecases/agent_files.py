"""The use cases of what agents hold: folders, open files, limits, and what their prompts show of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from mnemesh_kit.errors import InvalidArgument, ResourceExhausted, Unavailable
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import Principal

from mnemesh_files.model.agent_files import (
    MAX_REFERENCES,
    AgentFileFilter,
    AgentFileOrder,
    Attachment,
    Directories,
    FileReference,
    FileRequest,
    HeldFile,
    Opening,
    ShownFile,
)
from mnemesh_files.model.folders import Folder
from mnemesh_files.model.windows import FileLimits, require_valid_limits, view_of
from mnemesh_files.store.base.agent_files import AgentFileStore
from mnemesh_files.usecases.announcements import Announcer
from mnemesh_files.usecases.file_views import FileViews, TextGone

MAX_BATCH_AGENTS: Final = 1_000
_MAX_BATCH_CHARACTERS: Final = 2_000_000
_READS: Final = 5
"""How often a read begins again because the text of a file was replaced meanwhile."""


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
        """Returns a page of the folders of an agent."""
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
                shown = [await self._views.shown(caller.organization_id, file, limits) for file in found.items]
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
        return opening, await self._opened(caller, agent_id, opening)

    async def _opened(self, caller: Principal, agent_id: str, opening: Opening) -> list[ShownFile]:
        """Returns the files of an opening. A file that the agent does not hold any more is left out."""
        ids = [each.file_id for each in opening.opened]
        for _ in range(_READS):
            held = await self._store.held(caller.organization_id, agent_id, ids)
            limits = await self._store.limits(caller.organization_id, agent_id)
            files = [
                replace(held[each.file_id], window=each.window, is_open=True)
                for each in opening.opened
                if each.file_id in held
            ]
            try:
                return [await self._views.shown(caller.organization_id, file, limits) for file in files]
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
