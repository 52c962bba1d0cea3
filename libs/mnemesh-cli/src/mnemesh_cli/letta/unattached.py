"""What an agent of Letta does not hold itself: folders, archives and the rest of the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

from mnemesh.agents.v1 import identities_service_pb2
from mnemesh.archival.v1 import archives_service_pb2, passages_service_pb2
from mnemesh.blocks.v1 import blocks_service_pb2
from mnemesh.files.v1 import folders_service_pb2
from mnemesh.tools.v1 import mcp_servers_pb2, tools_service_pb2
from mnemesh_cli.letta.archives import archive_records, same_model
from mnemesh_cli.letta.database import LettaDatabase
from mnemesh_cli.letta.records import Target
from mnemesh_cli.letta.report import Report
from mnemesh_client.letta_files import resources
from mnemesh_client.letta_files.values import Row
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import MnemeshError, NotFound
from mnemesh_kit.ids import derive_id
from mnemesh_kit.unicode import well_formed

SOURCE_TAG: Final = "imported-from:"
_PASSAGES_PER_CALL: Final = 100
_PROVIDER_TYPES: Final = {"google_vertex": "google_ai", "lmstudio_openai": "lmstudio"}

Seen = Callable[[str, str], bool]


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


class UnattachedMigration:
    """Creates what is missing, by the ordinary calls. What a name, a key or a tag finds is used."""

    def __init__(
        self, database: LettaDatabase, mnemesh: Mnemesh, target: Target, report: Report, has_seen: Seen
    ) -> None:
        self._database = database
        self._mnemesh = mnemesh
        self._target = target
        self._report = report
        self._has_seen = has_seen

    async def providers(self) -> None:
        """Creates the organization's own providers, without their keys. The server's come from its environment."""
        known = {provider.name: provider.has_api_key async for provider in self._mnemesh.providers.list()}
        counts = self._report.counts["providers"]
        async for row in self._database.rows("providers", order=("created_at", "id"), provider_category="byok"):
            counts.letta += 1
            if row["name"] in known:
                counts.existing += 1
                if not known[row["name"]]:
                    self._without_key(row)
                continue
            kind = str(row["provider_type"])
            fields = {key: row[key] for key in ("base_url", "api_version", "region") if row.get(key)}
            try:
                await self._mnemesh.providers.create(row["name"], _PROVIDER_TYPES.get(kind, kind), **fields)
            except MnemeshError as error:
                self._report.skip("providers", row["id"], error.message)
                continue
            counts.created += 1
            self._without_key(row)

    def _without_key(self, row: Row) -> None:
        self._report.change("providers", row["id"], f"the key of {row['name']} is not copied; set it again")

    async def mcp_servers(self) -> None:
        """Registers MCP servers by their URL, without tokens and headers."""
        known = {server.name: server.status async for server in self._mnemesh.mcp_servers.list()}
        counts = self._report.counts["mcp servers"]
        async for row in self._database.rows("mcp_server", order=("created_at", "id")):
            if row["server_name"] in known:
                counts.existing += 1
                if known[row["server_name"]] != mcp_servers_pb2.MCP_SERVER_STATUS_REACHABLE:
                    self._without_token(row)
                continue
            kind = str(row["server_type"]).lower()
            if kind == "stdio" or not row.get("server_url"):
                self._report.skip("mcp servers", row["id"], "a program of another host; register it here again")
                continue
            try:
                await self._mnemesh.mcp_servers.create(
                    row["server_name"], row["server_url"], transport="sse" if kind == "sse" else "streamable_http"
                )
            except MnemeshError as error:
                self._report.skip("mcp servers", row["id"], error.message)
                continue
            counts.created += 1
            self._without_token(row)

    def _without_token(self, row: Row) -> None:
        self._report.change("mcp servers", row["id"], "its token and headers are not copied; set them again")

    async def tools(self) -> None:
        """Creates the custom tools that no migrated agent holds."""
        async for row in self._database.rows("tools", order=("created_at", "id")):
            if self._has_seen("tools", row["id"]):
                continue
            if resources.is_builtin_tool(row):
                self._report.counts["tools"].letta -= 1
                continue
            try:
                tool = resources.custom_tool(row)
            except ValueError as error:
                self._report.skip("tools", row["id"], str(error))
                continue
            found = [known async for known in self._mnemesh.tools.list(names=[tool.name])]
            request_id = derive_id("request", "letta", row["id"])
            request = tools_service_pb2.CreateToolRequest(request_id=request_id, tool=tool)
            await self._once("tools", row["id"], found, self._mnemesh.tools.stub.CreateTool, request)

    async def identities(self) -> None:
        """Creates the identities that no migrated agent has."""
        known = {identity.identifier_key async for identity in self._mnemesh.identities.list()}
        async for row in self._database.rows("identities", order=("created_at", "id")):
            if self._has_seen("identities", row["id"]):
                continue
            request_id = derive_id("request", "letta", row["id"])
            request = identities_service_pb2.UpsertIdentityRequest(
                request_id=request_id, identity=resources.identity(row)
            )
            answer = await self._mnemesh.identities.stub.UpsertIdentity(request)
            counts = self._report.counts["identities"]
            # A repeated call has the answer of the first one.
            created = answer.created and answer.identity.identifier_key not in known
            counts.created += created
            counts.existing += not created
            self._report.ids[row["id"]] = answer.identity.id

    async def blocks(self) -> None:
        """Creates the blocks that no migrated agent holds. They get a tag with the id that they had."""
        async for row in self._database.rows("block", order=("created_at", "id")):
            if self._has_seen("blocks", row["id"]):
                continue
            tag = SOURCE_TAG + row["id"]
            links = self._database.rows("blocks_tags", order=("tag",), block_id=row["id"])
            tags = [link["tag"] async for link in links]
            found = [known async for known in self._mnemesh.blocks.list(tags_any=[tag], limit=1)]
            request_id = derive_id("request", "letta", row["id"])
            block = resources.block(row, tags=[*tags, tag])
            if block.label != row["label"]:
                self._report.change("blocks", row["id"], f"the label {row['label']!r} is {block.label} here")
            request = blocks_service_pb2.CreateBlockRequest(request_id=request_id, block=block)
            await self._once("blocks", row["id"], found, self._mnemesh.blocks.stub.CreateBlock, request)
            history = await self._database.count("block_history", block_id=row["id"])
            if history:
                self._report.counts["block revisions"].skipped += history
                self._report.change("block revisions", row["id"], "revisions of a block that no agent holds")

    async def archives(self) -> None:
        """Creates the archives that no migrated agent holds, with their passages, whose ids are kept."""
        known = {archive.name: archive.id async for archive in self._mnemesh.archives.list()}
        async for row in self._database.rows("archives", order=("created_at", "id")):
            if not self._has_seen("archives", row["id"]):
                await self._archive(row, known)

    async def _archive(self, row: Row, known: dict[str, str]) -> None:
        archive_id = known.get(row["name"], "")
        counts = self._report.counts["archives"]
        arrived = (
            {item.id async for item in self._mnemesh.passages.list(archive_id=archive_id)} if archive_id else set()
        )
        batch: list[Any] = []
        async for record in self._records(row):
            if record.HasField("archive"):
                if archive_id:
                    self._report.ids[row["id"]] = archive_id
                    counts.existing += 1
                    continue
                request_id = derive_id("request", "letta", row["id"])
                request = archives_service_pb2.CreateArchiveRequest(request_id=request_id, archive=record.archive)
                archive_id = (await self._mnemesh.archives.stub.CreateArchive(request)).archive.id
                self._report.ids[row["id"]] = archive_id
                counts.created += 1
            elif record.passage.passage.id in arrived:
                self._report.counts["passages"].existing += 1
            else:
                batch.append(record.passage.passage)
                if len(batch) == _PASSAGES_PER_CALL:
                    await self._insert(archive_id, batch)
                    batch = []
        if batch:
            await self._insert(archive_id, batch)

    def _records(self, row: Row) -> AsyncIterator[Any]:
        return archive_records(self._database, [row["id"]], self._target.embedders, self._report)

    async def _insert(self, archive_id: str, passages: list[Any]) -> None:
        for passage in passages:
            passage.ClearField("archive_id")
        request_id = derive_id("request", "letta", *(passage.id for passage in passages))
        request = passages_service_pb2.InsertPassagesRequest(
            request_id=request_id, archive_id=archive_id, passages=passages
        )
        answer = await self._mnemesh.passages.stub.InsertPassages(request)
        for passage, result in zip(passages, answer.results, strict=True):
            if result.HasField("failure"):
                self._report.skip("passages", passage.id, result.failure.message)
            else:
                self._report.counts["passages"].created += 1
                self._report.vector_uses[result.vector_use] += 1

    async def _once(
        self, kind: str, id_: str, found: Sequence[Any], create: Callable[[Any], Any], request: Any
    ) -> None:
        counts = self._report.counts[kind]
        if found:
            counts.existing += 1
            self._note_id(id_, found[0].id)
            return
        try:
            answer = await create(request)
        except MnemeshError as error:
            self._report.skip(kind, id_, error.message)
        else:
            counts.created += 1
            self._note_id(id_, getattr(answer, kind.removesuffix("s")).id)

    def _note_id(self, id_: str, new_id: str) -> None:
        if new_id != id_:
            self._report.ids[id_] = new_id
