"""ServerIndex: the suite of every VectorIndex.

It runs on a real server if QDRANT_URL is set. It always runs on the client's local mode, which is another
implementation of the same calls, directly and through a fake of the server's gRPC services. Local mode tests the use
of the client's types and protocol, not the behaviour of a server.
"""

import os
import uuid
import warnings
from collections.abc import AsyncIterator

import pytest
from mnemesh_retrieval.errors import IndexClosed, IndexUnavailable, VectorIndexError
from mnemesh_retrieval.filters import HasWords
from mnemesh_retrieval.index import Point, WriteMode
from mnemesh_retrieval.server import ServerIndex, ServerSettings
from mnemesh_retrieval.server.protocol import own_name, server_name
from mnemesh_testkit.fakes.qdrant import fake_qdrant
from mnemesh_testkit.suites.vector_index import PLANTS, VectorIndexSuite
from qdrant_client import AsyncQdrantClient

QDRANT_URL = os.environ.get("QDRANT_URL", "")


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")
class TestServerAdapterOnLocalMode(VectorIndexSuite):
    @pytest.fixture
    async def index(self) -> AsyncIterator[ServerIndex]:
        index = ServerIndex(AsyncQdrantClient(":memory:"), prefix="test")
        yield index
        await index.close()


@pytest.mark.sampled(4)
class TestServerAdapterOnTheWire(VectorIndexSuite):
    version = "1.20.0"

    @pytest.fixture
    async def index(self) -> AsyncIterator[ServerIndex]:
        async with fake_qdrant(self.version) as server:
            index = await ServerIndex.open(ServerSettings(url="http://127.0.0.1:6333", grpc_port=server.port))
            yield index
            await index.close()


@pytest.mark.full
class TestOldestServerAdapterOnTheWire(TestServerAdapterOnTheWire):
    version = "1.16.0"


@pytest.mark.parametrize("version", ["1.16.3", "1.17.0"])
async def test_writes_of_absent_and_of_present_points(version: str) -> None:
    first, second, third = (uuid.UUID(int=number) for number in (1, 2, 3))
    async with fake_qdrant(version) as server:
        index = await ServerIndex.open(ServerSettings(url="http://127.0.0.1:6333", grpc_port=server.port))
        await index.ensure_collection(PLANTS)
        await index.write("plants", [Point(first, None, "", {"text": "old"})])
        new = [Point(id_, None, "", {"text": "new"}) for id_ in (first, second)]
        await index.write("plants", new, WriteMode.INSERT_ABSENT)
        newer = [Point(id_, None, "", {"text": "newer"}) for id_ in (second, third)]
        await index.write("plants", newer, WriteMode.UPDATE_PRESENT)
        stored = await index.get("plants", [first, second, third])
        await index.close()
    assert [(point.id, point.payload["text"]) for point in stored] == [(first, "old"), (second, "newer")]


@pytest.mark.parametrize(
    ("words", "is_found"),
    [("桜の木", True), ("桜", True), ("木が", True), ("木桜", False), ("る森", False), ("桜木", False), ("森", True)],
)
async def test_runs_of_characters_are_found_literally_on_an_older_server(words: str, is_found: bool) -> None:
    async with fake_qdrant("1.19.2") as server:
        index = await ServerIndex.open(ServerSettings(url="http://127.0.0.1:6333", grpc_port=server.port))
        await index.ensure_collection(PLANTS)
        id_ = uuid.uuid4()
        await index.write("plants", [Point(id_, None, "", {"text": "old moss"})])
        await index.set_payload("plants", [id_], {"text": "庭に桜の木がある, 森"})
        assert await index.count("plants", HasWords("text", words)) == int(is_found)
        [stored] = await index.get("plants", [id_])
        await index.close()
    assert stored.payload == {"text": "庭に桜の木がある, 森"}


async def test_payload_indexes_are_created_with_the_tenant_field() -> None:
    async with fake_qdrant() as server:
        index = await ServerIndex.open(ServerSettings(url="http://127.0.0.1:6333", grpc_port=server.port))
        await index.ensure_collection(PLANTS)
        indexes = {name: params.model_dump(exclude_none=True, mode="json") for name, params in server.indexes.items()}
        await index.close()
    assert indexes == {
        "tenant": {"type": "keyword", "is_tenant": True},
        "tags": {"type": "keyword"},
        "created_at": {"type": "datetime"},
        "text": {"type": "text", "tokenizer": "word", "lowercase": True, "ascii_folding": True},
    }


async def test_old_server_is_refused() -> None:
    async with fake_qdrant(version="1.15.5") as server:
        with pytest.raises(VectorIndexError, match=r"1\.15\.5; it must be 1\.16 or newer"):
            await ServerIndex.open(ServerSettings(url="http://127.0.0.1:6333", grpc_port=server.port))


if QDRANT_URL:

    class TestServerIndex(VectorIndexSuite):
        @pytest.fixture
        async def index(self) -> AsyncIterator[ServerIndex]:
            settings = ServerSettings(
                url=QDRANT_URL,
                api_key=os.environ.get("QDRANT_API_KEY", ""),
                grpc_port=int(os.environ.get("QDRANT_GRPC_PORT", "6334")),
                prefix=f"test-{uuid.uuid4().hex}",
            )
            index = await ServerIndex.open(settings)
            yield index
            for name in await index.collections():
                await index.drop_collection(name)
            await index.close()

else:

    @pytest.mark.skip(reason="NO QDRANT SERVER WAS TESTED: set QDRANT_URL to one (docker-compose.yml has it)")
    def test_suite_on_a_server() -> None:
        """Represents all cases of VectorIndexSuite."""


def test_collection_names_are_escaped_and_restored() -> None:
    name = "passages:acme/embed=1 é?*"
    escaped = server_name("archival", name)
    assert not set(escaped) & set('<>:"/\\|?*\0% ')
    assert own_name("archival", escaped) == name
    assert own_name("recall", escaped) is None


async def test_unreachable_server_is_unavailable(unused_tcp_port: int) -> None:
    with pytest.raises(IndexUnavailable, match=r"cannot be reached|UNAVAILABLE"):
        await ServerIndex.open(ServerSettings(url=f"http://127.0.0.1:{unused_tcp_port}", grpc_port=unused_tcp_port))


async def test_closed_index_raises_index_closed() -> None:
    with warnings.catch_warnings():
        index = ServerIndex(AsyncQdrantClient(":memory:"), prefix="test")
    await index.close()
    await index.close()
    with pytest.raises(IndexClosed):
        await index.collections()
