"""Short ways to call the archival service."""

from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.archival.v1.archives_pb2 import Archive, Passage
from mnemesh.archival.v1.archives_service_pb2 import CreateArchiveRequest
from mnemesh.archival.v1.archives_service_pb2_grpc import ArchiveServiceStub
from mnemesh.archival.v1.embeddings_service_pb2_grpc import EmbeddingServiceStub
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_CONTINUITY_UNSPECIFIED,
    GetArchivalSummaryRequest,
    GetArchivalSummaryResponse,
    InsertPassagesRequest,
    InsertPassagesResponse,
    PassageContinuity,
    SearchPassagesRequest,
)
from mnemesh.archival.v1.passages_service_pb2_grpc import PassageServiceStub
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.service_suite import ServiceSuite


class Archival:
    """The stubs of the archival service over one channel, with the calls that tests repeat."""

    def call_through(self, channel: Any) -> None:
        """Makes the stubs."""
        self.archives: Any = ArchiveServiceStub(channel)
        self.passages: Any = PassageServiceStub(channel)
        self.embeddings: Any = EmbeddingServiceStub(channel)

    async def archive(self, *agent_ids: str, **fields: object) -> str:
        """The id of a new archive that the agents hold."""
        draft = Archive(**{"name": "notes", **fields})  # type: ignore[arg-type]
        made = await self.archives.CreateArchive(CreateArchiveRequest(archive=draft, agent_ids=agent_ids))
        return str(made.archive.id)

    async def insert(
        self,
        target: str,
        *passages: Passage | str,
        request_id: str = "",
        continuity: int = PASSAGE_CONTINUITY_UNSPECIFIED,
    ) -> InsertPassagesResponse:
        """Inserts into an archive, or into an agent's own."""
        where: dict[str, Any] = {"agent_id": target} if target.startswith("agent-") else {"archive_id": target}
        drafts = [Passage(text=given) if isinstance(given, str) else given for given in passages]
        answer: InsertPassagesResponse = await self.passages.InsertPassages(
            InsertPassagesRequest(
                passages=drafts,
                request_id=request_id,
                continuity=PassageContinuity.ValueType(continuity),
                **where,
            )
        )
        return answer

    async def one(self, target: str, text: str, **fields: object) -> str:
        """The id of one new passage."""
        (result,) = (await self.insert(target, Passage(text=text, **fields))).results  # type: ignore[arg-type]
        return str(result.passage.id)

    async def texts(self, query: str = "", **request: object) -> list[str]:
        """The texts that a search finds, best first."""
        found = await self.passages.SearchPassages(SearchPassagesRequest(query=query, **request))  # type: ignore[arg-type]
        return [hit.passage.text for hit in found.hits]

    async def summary(self, agent_id: str, if_revision: int | None = None) -> GetArchivalSummaryResponse:
        """Returns the summary of an agent's archives."""
        request = GetArchivalSummaryRequest(agent_id=agent_id, if_revision=if_revision)
        answer: GetArchivalSummaryResponse = await self.passages.GetArchivalSummary(request)
        return answer


class ArchivalCases(ServiceSuite):
    @pytest_asyncio.fixture(loop_scope="class")
    async def client(self, channel: Any) -> Archival:
        """The stubs of the service."""
        client = Archival()
        client.call_through(channel)
        return client

    @pytest.fixture
    def agent(self) -> str:
        """An agent's id."""
        return new_id("agent")


async def reason(call: Coroutine[Any, Any, Any]) -> str:
    """Returns the reason with which a call is refused."""
    with pytest.raises(MnemeshError) as refused:
        await call
    return refused.value.reason


def at(text: str) -> Timestamp:
    """A time of day in UTC."""
    stamp = Timestamp()
    stamp.FromDatetime(datetime.fromisoformat(text).replace(tzinfo=UTC))
    return stamp


def stranger() -> Principal:
    """Returns a caller of another organization."""
    return Principal(new_id("org"), new_id("user"))
