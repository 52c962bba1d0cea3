"""docs/gateway.md lists every parameter that the gateway knows, and the SDK has no other one."""

import re
from pathlib import Path
from typing import Any

import pytest
from mnemesh_gateway.http.parameters import EMBEDDINGS_PARAMETERS, PARAMETERS, RESPONSES_PARAMETERS
from openai.types import embedding_create_params as embeddings
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as responses

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"


@pytest.mark.parametrize(
    ("section", "known"),
    [("Parameters", PARAMETERS), ("Responses", RESPONSES_PARAMETERS), ("Embeddings", EMBEDDINGS_PARAMETERS)],
)
def test_every_parameter_is_documented(section: str, known: frozenset[str]) -> None:
    text = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    names = [name for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert len(names) == len(set(names))
    assert set(names) == known


@pytest.mark.parametrize(
    ("shapes", "known"),
    [
        ((chat.CompletionCreateParamsNonStreaming, chat.CompletionCreateParamsStreaming), PARAMETERS),
        ((responses.ResponseCreateParamsNonStreaming, responses.ResponseCreateParamsStreaming), RESPONSES_PARAMETERS),
        ((embeddings.EmbeddingCreateParams,), EMBEDDINGS_PARAMETERS),
    ],
    ids=["chat", "responses", "embeddings"],
)
def test_every_parameter_of_the_sdk_is_known(shapes: tuple[Any, ...], known: frozenset[str]) -> None:
    assert {name for shape in shapes for name in shape.__annotations__} - known == set()
