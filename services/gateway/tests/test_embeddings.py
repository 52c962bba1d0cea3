"""Vectors of texts through OpenAI's SDK."""

import base64
import struct
from typing import Any

import httpx
import openai
import pytest
from mnemesh.archival.v1.archives_pb2 import Archive, Passage
from mnemesh.archival.v1.archives_service_pb2 import CreateArchiveRequest
from mnemesh.archival.v1.passages_service_pb2 import GetPassageRequest, InsertPassagesRequest
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.timeouts import scaled

HASHING = "mnemesh/hashing-256"
PATH = "/v1/embeddings"


async def test_vectors_are_those_of_archives(mesh: Mesh, sdk: openai.AsyncOpenAI, base_url: str) -> None:
    texts = ["an old oak", "a young birch", "Ünïcode ✓"]
    request = CreateArchiveRequest(archive=Archive(name="notes", embedder=HASHING))
    archive = (await mesh.stubs.archives.CreateArchive(request)).archive.id
    insert = InsertPassagesRequest(archive_id=archive, passages=[Passage(text=text) for text in texts])
    stored = [
        await mesh.stubs.passages.GetPassage(GetPassageRequest(passage_id=each.passage.id, include_embedding=True))
        for each in (await mesh.stubs.passages.InsertPassages(insert)).results
    ]
    got = await sdk.embeddings.create(model=HASHING, input=texts, dimensions=256, user="ada")
    assert (got.object, got.model, got.usage.prompt_tokens, got.usage.total_tokens) == ("list", HASHING, 0, 0)
    assert [each.index for each in got.data] == [0, 1, 2]
    for each, passage in zip(got.data, stored, strict=True):
        assert each.embedding == pytest.approx(list(passage.passage.embedding), abs=1e-6)
    counted = await sdk.embeddings.create(model="mnemesh/wordllama-256", input=["an old oak", "a young birch"])
    assert 6 <= counted.usage.prompt_tokens == counted.usage.total_tokens < 12
    one = await sdk.embeddings.create(model=HASHING, input=texts[1], encoding_format="float")
    assert one.data[0].embedding == got.data[1].embedding
    many = await sdk.embeddings.create(model=HASHING, input=[f"word{index}" for index in range(2048)])
    last = await sdk.embeddings.create(model=HASHING, input="word2047")
    assert (len(many.data), many.data[-1].embedding) == (2048, last.data[0].embedding)
    async with httpx.AsyncClient(base_url=base_url, timeout=scaled(60)) as raw:
        body = {"model": HASHING, "input": texts[1], "encoding_format": "base64"}
        (encoded,) = (await raw.post(PATH, json=body)).json()["data"]
    assert list(struct.unpack("<256f", base64.b64decode(encoded["embedding"]))) == one.data[0].embedding


async def test_wrong_requests_name_the_field(sdk: openai.AsyncOpenAI, base_url: str) -> None:
    wrong: list[tuple[dict[str, Any], str, str]] = [
        ({"input": None}, "input", "invalid_type"),
        ({"input": 5}, "input", "invalid_type"),
        ({"input": []}, "input", "empty_array"),
        ({"input": ""}, "input", "invalid_value"),
        ({"input": ["x", ""]}, "input[1]", "invalid_value"),
        ({"input": ["x", 5]}, "input[1]", "invalid_type"),
        ({"input": [1, 2]}, "input", "unsupported_parameter"),
        ({"input": [[1], [2]]}, "input", "unsupported_parameter"),
        ({"input": ["x"] * 2049}, "input", "invalid_value"),
        ({"input": ["x", "y" * 1_000_001]}, "input[1]", "invalid_value"),
        ({"input": "y" * 1_000_001}, "input", "invalid_value"),
        ({"input": ["y" * 900_000] * 6}, "input", "invalid_value"),
        ({"input": "a\0"}, "input", "invalid_value"),
        ({"model": ""}, "model", "invalid_value"),
        ({"model": 5}, "model", "invalid_type"),
        ({"model": "x" * 501}, "model", "invalid_value"),
        ({"encoding_format": "int8"}, "encoding_format", "invalid_value"),
        ({"dimensions": 128}, "dimensions", "unsupported_parameter"),
        ({"dimensions": 0}, "dimensions", "invalid_value"),
        ({"dimensions": "256"}, "dimensions", "invalid_type"),
        ({"user": 5}, "user", "invalid_type"),
        ({"stream": True}, "stream", "unknown_parameter"),
    ]
    async with httpx.AsyncClient(base_url=base_url, timeout=scaled(60)) as raw:
        for change, param, code in wrong:
            answer = await raw.post(PATH, json={"model": HASHING, "input": "x", **change})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"], error["code"]) == (400, param, code), (str(change)[:80], error)
        assert (await raw.post(PATH, json={"model": HASHING})).json()["error"]["param"] == "input"
        assert (await raw.get(PATH)).status_code == 405
    for model in ("text-embedding-3-small", "mnemesh/other", "openai/text-embedding-3-small"):
        with pytest.raises(openai.NotFoundError) as unknown:
            await sdk.embeddings.create(model=model, input="x")
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")


async def test_archival_that_is_away(mesh: Mesh, sdk: openai.AsyncOpenAI) -> None:
    await mesh.stop("archival")
    with pytest.raises(openai.InternalServerError) as away:
        await sdk.embeddings.create(model=HASHING, input="x", timeout=100)
    assert away.value.status_code == 503
