"""Vectors of texts."""

from __future__ import annotations

import pytest
from mnemesh.archival.v1.embeddings_service_pb2 import EmbedTextsRequest
from mnemesh.archival.v1.passages_service_pb2 import GetPassageRequest
from mnemesh_kit.errors import InvalidArgument

from mnemesh_testkit.suites.archival.calls import Archival, ArchivalCases


class Embedding(ArchivalCases):
    """Vectors over the RPC."""

    @pytest.mark.parametrize("embedder", ["", "mnemesh/wordllama-256"])
    async def test_vectors_are_those_of_passages(self, client: Archival, embedder: str) -> None:
        archive = await client.archive(embedder=embedder)
        texts = ["an old oak", "a young birch"]
        passages = [await client.one(archive, text) for text in texts]
        stored = [
            (await client.passages.GetPassage(GetPassageRequest(passage_id=each, include_embedding=True))).passage
            for each in passages
        ]
        got = await client.embeddings.EmbedTexts(EmbedTextsRequest(embedder=embedder, texts=[*texts, " "]))
        assert (got.embedder, got.dimension) == (embedder or "mnemesh/hashing-256", 256)
        assert [len(each.values) for each in got.embeddings] == [256] * 3
        for passage, each in zip(stored, got.embeddings, strict=False):
            assert list(each.values) == pytest.approx(list(passage.embedding), abs=1e-6)
        assert not any(got.embeddings[2].values)
        assert got.embeddings[0] != got.embeddings[1]

    async def test_many_texts_are_in_order(self, client: Archival) -> None:
        texts = [f"word{index}" for index in range(300)] + ["long " * 50_000, "last"]
        many = (await client.embeddings.EmbedTexts(EmbedTextsRequest(texts=texts))).embeddings
        for index in (0, 127, 128, 299, 300, 301):
            (alone,) = (await client.embeddings.EmbedTexts(EmbedTextsRequest(texts=[texts[index]]))).embeddings
            assert many[index] == alone

    async def test_unknown_embedder_is_refused(self, client: Archival) -> None:
        with pytest.raises(InvalidArgument) as refused:
            await client.embeddings.EmbedTexts(EmbedTextsRequest(embedder="mnemesh/none", texts=["x"]))
        assert (refused.value.reason, refused.value.field) == ("EMBEDDER_UNKNOWN", "embedder")
