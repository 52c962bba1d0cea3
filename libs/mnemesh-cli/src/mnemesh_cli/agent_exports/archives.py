"""The import of archives and passages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mnemesh.archival.v1 import archives_pb2, archives_service_pb2, passages_service_pb2
from mnemesh_cli.agent_exports.files import ARCHIVES, PASSAGES, from_line, read
from mnemesh_client.agent import Agent
from mnemesh_client.inputs import present_fields
from mnemesh_kit.ids import derive_id

if TYPE_CHECKING:
    from mnemesh_client.mnemesh import Mnemesh

_BATCH: Final = 500
_BATCH_BYTES: Final = 2_000_000


async def restore_passages(mnemesh: Mnemesh, agent: Agent, directory: Path) -> tuple[int, int, list[str]]:
    """Creates the archives and passages of an export that the agent does not have.

    An archive is known by its id or its name, and the archive that was created for an agent by that. A passage is known
    by its id, or by the id that is derived from it for this agent.

    Returns:
        The number of new archives, the number of new passages, and the refusals of passages.
    """
    given = [from_line(line, archives_pb2.Archive(), ARCHIVES) for line in read(directory, ARCHIVES)]
    passages = [from_line(line, archives_pb2.Passage(), PASSAGES) for line in read(directory, PASSAGES)]
    if not given and not passages:
        return 0, 0, []
    own = [archive async for archive in mnemesh.archives.list(agent_id=agent.id, order="asc")]
    existing = {passage.id async for passage in mnemesh.passages.list(agent_id=agent.id)} if own else set()
    created, stored = 0, 0
    notes: list[str] = []
    for archive in given:
        target = next((InsertTarget(archive_id=each.id) for each in own if _is_same(each, archive)), None)
        if target is None:
            target = await _create(mnemesh, agent, archive)
            created += 1
        new = [
            _copy(passage, derive_id("passage", agent.id, passage.id))
            for passage in passages
            if passage.archive_id == archive.id
            and existing.isdisjoint((passage.id, derive_id("passage", agent.id, passage.id)))
        ]
        for batch in _batches(new):
            request = target.request(batch)
            for result in (await mnemesh.passages.stub.InsertPassages(request)).results:
                if result.WhichOneof("result") == "failure":
                    notes.append(f"A passage was refused: {result.failure.message}")
                else:
                    stored += 1
    return created, stored, notes


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertTarget:
    """The target of an insert: an archive, or the archive that archival creates for an agent with an embedder."""

    archive_id: str | None = None
    agent_id: str | None = None
    embedder: str = ""

    def request(self, passages: Sequence[archives_pb2.Passage]) -> passages_service_pb2.InsertPassagesRequest:
        """Returns the request that inserts passages. It is the same for the same passages."""
        return passages_service_pb2.InsertPassagesRequest(
            request_id=derive_id("request", *(passage.id for passage in passages)),
            **present_fields(archive_id=self.archive_id, agent_id=self.agent_id),
            default_embedder=self.embedder,
            passages=passages,
        )


def _is_same(own: archives_pb2.Archive, given: archives_pb2.Archive) -> bool:
    if given.HasField("created_for_agent_id") and own.HasField("created_for_agent_id"):
        return True
    return own.id == given.id or own.name == given.name


async def _create(mnemesh: Mnemesh, agent: Agent, given: archives_pb2.Archive) -> InsertTarget:
    if given.HasField("created_for_agent_id"):
        return InsertTarget(agent_id=agent.id, embedder=given.embedder)
    archive = archives_pb2.Archive(
        name=given.name, embedder=given.embedder, deduplicate=given.deduplicate,
        description=given.description if given.HasField("description") else None,
        metadata=given.metadata if given.HasField("metadata") else None,
    )  # fmt: skip
    request = archives_service_pb2.CreateArchiveRequest(
        request_id=derive_id("request", agent.id, given.id), archive=archive, agent_ids=[agent.id]
    )
    return InsertTarget(archive_id=(await mnemesh.archives.stub.CreateArchive(request)).archive.id)


def _copy(passage: archives_pb2.Passage, passage_id: str) -> archives_pb2.Passage:
    copy = archives_pb2.Passage()
    copy.CopyFrom(passage)
    for name in ("archive_id", "agent_id", "update_time"):
        copy.ClearField(name)
    copy.id = passage_id
    return copy


def _batches(passages: Sequence[archives_pb2.Passage]) -> Iterator[list[archives_pb2.Passage]]:
    batch: list[archives_pb2.Passage] = []
    size = 0
    for passage in passages:
        if batch and (len(batch) == _BATCH or size + passage.ByteSize() > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(passage)
        size += passage.ByteSize()
    if batch:
        yield batch
