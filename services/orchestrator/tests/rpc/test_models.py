"""Models by handle: pages in both directions, and filters."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from mnemesh.agents.v1 import models_pb2
from mnemesh.agents.v1 import models_service_pb2 as rpc
from mnemesh_kit.paging import PageQuery, page_of
from mnemesh_orchestrator.model.models import ModelInfo
from mnemesh_types.agents import ModelSettings

if TYPE_CHECKING:
    from .conftest import Wire

MODELS = [ModelInfo(f"p/{name}", "p", name, "openai_chat", ModelSettings()) for name in "cadbe"]


@pytest.mark.parametrize("ascending", [True, False])
def test_pages_cover_each_model_once(*, ascending: bool) -> None:
    query, seen = PageQuery(2, ascending=ascending), []
    while True:
        page = page_of(MODELS, query, lambda info: info.handle)
        seen += [info.provider_model for info in page.items]
        if page.next_cursor is None:
            break
        query = replace(query, cursor=page.next_cursor)
    assert seen == sorted("abcde", reverse=not ascending)


def test_list_is_bounded_by_after_id_and_before_id() -> None:
    def names(**given: Any) -> str:
        query = PageQuery(9, **{"ascending": True, **given})
        return "".join(info.provider_model for info in page_of(MODELS, query, lambda info: info.handle).items)

    assert names(after_id="p/b") == "cde"
    assert names(before_id="p/c") == "ab"
    assert names(after_id="p/a", before_id="p/d") == "bc"
    assert names(after_id="p/c", ascending=False) == "ba"
    assert names(before_id="p/c", ascending=False) == "ed"
    assert names(after_id="p/bb") == "cde", "a model that is gone is still a place"


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, True),
        ({"providers": ["mnemesh", "openai"]}, True),
        ({"providers": ["openai"]}, False),
        ({"provider_types": ["mnemesh"]}, True),
        ({"provider_types": ["anthropic"]}, False),
        ({"provider_categories": [models_pb2.PROVIDER_CATEGORY_BASE]}, True),
        ({"provider_categories": [models_pb2.PROVIDER_CATEGORY_BYOK]}, False),
        ({"handle_search": "REHEARS"}, True),
        ({"handle_search": "gpt"}, False),
        ({"hidden": False}, True),
        ({"hidden": True}, False),
    ],
)
async def test_lists_apply_filters(wire: "Wire", filters: dict[str, Any], *, found: bool) -> None:
    answer = await wire.models.ListModels(rpc.ListModelsRequest(**filters))
    assert [model.handle for model in answer.models] == (["mnemesh/rehearsal"] if found else [])
    assert not answer.next_page_token


async def test_get_returns_the_listed_model(wire: "Wire") -> None:
    (listed,) = (await wire.models.ListModels(rpc.ListModelsRequest())).models
    assert listed == (await wire.models.GetModel(rpc.GetModelRequest(handle=listed.handle))).model
