"""Uploads the files of Letta's folders: their text, as Letta keeps no other content."""

from __future__ import annotations

from collections.abc import Mapping

from mnemesh.files.v1 import folders_service_pb2
from mnemesh_cli.letta.database import LettaDatabase
from mnemesh_cli.letta.records import Target
from mnemesh_cli.letta.report import Report
from mnemesh_cli.letta.vectors import same_model
from mnemesh_client.letta_files import resources
from mnemesh_client.letta_files.values import Row
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import MnemeshError, NotFound
from mnemesh_kit.ids import derive_id
from mnemesh_kit.unicode import well_formed


class FolderMigration:
    """Creates folders by their names, and uploads the files that they do not have."""

    def __init__(self, database: LettaDatabase, mnemesh: Mnemesh, target: Target, report: Report) -> None:
        self._database = database
        self._mnemesh = mnemesh
        self._target = target
        self._report = report

    async def run(self) -> None:
        """Migrates all folders."""
        async for row in self._database.rows("sources", order=("created_at", "id")):
            folder_id = await self._folder(row)
            known = {file.name: file.id async for file in self._mnemesh.files.list(folder_id=folder_id)}
            files = await self._database.all("files", order=("created_at", "id"), source_id=row["id"])
            for file in files:
                await self._file(folder_id, file, known)

    async def _folder(self, row: Row) -> str:
        folder = resources.folder(row)
        try:
            found = await self._mnemesh.folders.find(folder.name)
        except NotFound:
            folder.embedder = same_model(folder.embedder, self._target.embedders) or ""
            request_id = derive_id("request", "letta", row["id"])
            request = folders_service_pb2.CreateFolderRequest(request_id=request_id, folder=folder)
            found = (await self._mnemesh.folders.stub.CreateFolder(request)).folder
            self._report.counts["folders"].created += 1
        else:
            self._report.counts["folders"].existing += 1
        self._report.ids[row["id"]] = found.id
        return found.id

    async def _file(self, folder_id: str, row: Row, known: Mapping[str, str]) -> None:
        name = resources.file_name(row)
        if name in known:
            self._report.ids[row["id"]] = known[name]
            self._report.counts["files"].existing += 1
            return
        contents = await self._database.all("file_contents", file_id=row["id"])
        if not contents or not contents[0]["text"]:
            self._report.skip("files", row["id"], f"Letta has no text of {name}")
            return
        if name != resources.original_name(row):
            self._report.change("files", row["id"], f"stored as {name}: Letta keeps the text of a file, not the file")
        try:
            answer = await self._mnemesh.files.upload(
                folder_id,
                well_formed(contents[0]["text"]).encode(),
                name=name,
                on_duplicate="skip",
                media_type="text/markdown" if name.endswith(".md") else "text/plain",
                request_id=derive_id("request", "letta", row["id"]),
            )
        except MnemeshError as error:
            self._report.skip("files", row["id"], error.message)
            return
        self._report.ids[row["id"]] = answer.file.id
        self._report.counts["files"].created += 1
