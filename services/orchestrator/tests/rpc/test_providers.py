"""Providers of organizations, over gRPC and real HTTP, on SQLite and PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from mnemesh.agents.v1 import models_pb2 as pb
from mnemesh.agents.v1 import models_service_pb2 as rpc
from mnemesh_kit.call_context import as_principal
from mnemesh_kit.errors import MnemeshError
from mnemesh_testkit.fakes.openai import FakeOpenAI

from .provider_calls import OTHER, PATIENCE, Guarded, a_key, a_provider, create, handles, named, served, settings

if TYPE_CHECKING:
    from mnemesh.agents.v1.models_service_pb2_grpc import ModelServiceAsyncStub


class ProviderTests:
    """The tests that use the store, on each SQL engine."""

    async def test_provider_is_registered_read_updated_and_deleted(self, models: "ModelServiceAsyncStub") -> None:
        async with Guarded(models=["small", {"id": "large", "max_model_len": 65_536}]) as fake:
            created = await create(models, a_provider(fake))
            assert (created.name, created.type, created.category) == ("mine", "vllm", pb.PROVIDER_CATEGORY_BYOK)
            assert (created.has_api_key, created.model_count, created.api) == (True, 2, pb.MODEL_API_OPENAI_CHAT)
            assert created.HasField("last_refresh_time")
            assert not created.HasField("last_refresh_error")
            assert (await models.GetProvider(rpc.GetProviderRequest(provider_id=created.id))).provider == created
            assert await handles(models) == ["mine/large", "mine/small", "mnemesh/rehearsal"]
            assert await handles(models, provider_categories=[pb.PROVIDER_CATEGORY_BYOK]) == [
                "mine/large",
                "mine/small",
            ]
            large = await named(models, "mine/large")
            assert (large.context_window, large.context_window_source) == (65_536, pb.FIGURE_SOURCE_PROVIDER)
            assert (large.provider_id, large.last_seen_time) == (created.id, created.last_refresh_time)
            assert (await named(models, "")).handle == "mine/small", "the organization's own is better than a rehearsal"

            fake.key = "another-key"
            change = rpc.UpdateProviderRequest(provider=pb.Provider(id=created.id), credentials=a_key("another-key"))
            assert not (await models.UpdateProvider(change)).provider.HasField("last_refresh_error")
            assert fake.heard[-1]["authorization"] == "Bearer another-key"
            off = rpc.UpdateProviderRequest(
                provider=pb.Provider(id=created.id, disabled=True), update_mask={"paths": ["disabled"]}
            )
            count = len(fake.heard)
            assert (await models.UpdateProvider(off)).provider.disabled
            assert len(fake.heard) == count, "nothing that concerns its models was changed"
            assert await handles(models) == ["mnemesh/rehearsal"]
            with pytest.raises(MnemeshError) as refused:
                await named(models, "mine/large")
            assert refused.value.reason == "MODEL_UNKNOWN"

            for _ in range(2):
                await models.DeleteProvider(rpc.DeleteProviderRequest(provider_id=created.id))
            with pytest.raises(MnemeshError) as gone:
                await models.GetProvider(rpc.GetProviderRequest(provider_id=created.id))
            assert gone.value.reason == "NOT_FOUND"

    async def test_repeated_request_registers_once(self, models: "ModelServiceAsyncStub") -> None:
        async with Guarded() as fake:
            first = await create(models, a_provider(fake), request_id="once")
            assert await create(models, a_provider(fake), request_id="once") == first
            assert len(fake.heard) == 1
            with pytest.raises(MnemeshError) as reused:
                await create(models, a_provider(fake), "another-key", request_id="once")
            assert reused.value.reason == "REQUEST_ID_REUSED"
            with pytest.raises(MnemeshError) as taken:
                await create(models, a_provider(fake))
            assert taken.value.reason == "ALREADY_EXISTS"
            with pytest.raises(MnemeshError) as reserved:
                await create(models, a_provider(fake, "mnemesh"))
            assert reserved.value.reason == "ALREADY_EXISTS"

    async def test_provider_is_not_found_by_other_organizations(self, models: "ModelServiceAsyncStub") -> None:
        async with Guarded() as fake, FakeOpenAI(models=["theirs"]) as other:
            created = await create(models, a_provider(fake))
            with as_principal(OTHER):
                request: list[Any] = [
                    models.GetProvider(rpc.GetProviderRequest(provider_id=created.id)),
                    models.UpdateProvider(
                        rpc.UpdateProviderRequest(provider=pb.Provider(id=created.id), credentials=a_key("x"))
                    ),
                    models.RefreshProvider(rpc.RefreshProviderRequest(provider_id=created.id)),
                    models.CheckProvider(rpc.CheckProviderRequest(provider_id=created.id)),
                ]
                for call in request:
                    with pytest.raises(MnemeshError) as missing:
                        await call
                    assert missing.value.reason == "NOT_FOUND"
                await models.DeleteProvider(rpc.DeleteProviderRequest(provider_id=created.id))
                listed = (await models.ListProviders(rpc.ListProvidersRequest())).providers
                assert [provider.name for provider in listed] == ["mnemesh"]
                assert await handles(models) == ["mnemesh/rehearsal"]
                with pytest.raises(MnemeshError) as unknown:
                    await named(models, "mine/fake-model")
                assert unknown.value.reason == "MODEL_UNKNOWN"
                assert "mine" not in unknown.value.message.partition("configured:")[2]
                theirs = await create(models, a_provider(other), "theirs")
                assert await handles(models, providers=["mine"]) == ["mine/theirs"]
            assert theirs.id != created.id
            assert (await models.GetProvider(rpc.GetProviderRequest(provider_id=created.id))).provider == created
            assert await handles(models, providers=["mine"]) == ["mine/fake-model"]

    async def test_model_overrides_are_applied(self, models: "ModelServiceAsyncStub") -> None:
        async with Guarded() as fake:
            await create(models, a_provider(fake))

            async def update(request_id: str = "", handle: str = "mine/fake-model", **fields: Any) -> pb.Model:
                paths = (
                    [f"capabilities.{name.name}" for name in pb.ModelCapabilities.DESCRIPTOR.fields]
                    if "capabilities" in fields
                    else list(fields)
                )
                mask = {"paths": paths}
                model = pb.Model(handle=handle, **fields)
                request = rpc.UpdateModelRequest(model=model, update_mask=mask, request_id=request_id)
                return (await models.UpdateModel(request)).model

            before = await named(models, "mine/fake-model")
            changed = await update(
                display_name="Fake",
                context_window=9_000,
                max_output_tokens=700,
                hidden=True,
                price=pb.ModelPrice(input=3, output=0),
                default_settings='{"temperature": 0.25}',
            )
            assert (changed.context_window, changed.context_window_source) == (9_000, pb.FIGURE_SOURCE_OVERRIDE)
            assert (changed.max_output_tokens, changed.max_output_tokens_source) == (700, pb.FIGURE_SOURCE_OVERRIDE)
            assert (changed.display_name, changed.hidden, changed.price) == (
                "Fake",
                True,
                pb.ModelPrice(input=3, output=0),
            )
            assert '"temperature": 0.25' in changed.default_settings
            assert await named(models, "mine/fake-model") == changed
            assert await handles(models, hidden=False) == ["mnemesh/rehearsal"]
            with as_principal(OTHER):
                rehearsal = await named(models, "mnemesh/rehearsal")
            assert (await update(handle="mnemesh/rehearsal", context_window=5_000)).context_window == 5_000
            with as_principal(OTHER):
                assert await named(models, "mnemesh/rehearsal") == rehearsal
            able = await update(handle="mnemesh/rehearsal", capabilities=pb.ModelCapabilities(image_input=True))
            assert able.capabilities == pb.ModelCapabilities(image_input=True)
            back = await update(
                display_name="",
                context_window=0,
                max_output_tokens=0,
                hidden=False,
                default_settings="",
                price=None,
            )
            assert back == before
            for fields, field in (
                ({"handle": "nobody/x", "context_window": 1}, None),
                ({"context_window": -1}, "model.context_window"),
                ({"price": pb.ModelPrice(input=-1)}, "model.price.input"),
                ({"price": pb.ModelPrice(input=0, output=10**12 + 1)}, "model.price.output"),
                ({"default_settings": "[]"}, "model.default_settings"),
                ({"default_settings": '{"warmth": 1}'}, "model.default_settings"),
                ({"default_settings": '{"temperature": 9}'}, "model.default_settings.temperature"),
                ({"default_settings": '{"context_window": 9}'}, "model.default_settings"),
                ({"endpoint": "http://x"}, "update_mask"),
                ({}, "update_mask"),
            ):
                with pytest.raises(MnemeshError) as refused:
                    await update(**fields)
                assert refused.value.reason == ("MODEL_UNKNOWN" if field is None else "INVALID_ARGUMENT")
                assert refused.value.field == field

    async def test_refresh_reports_added_and_removed_models(self, models: "ModelServiceAsyncStub") -> None:
        async with Guarded(models=["old", "kept"]) as fake:
            created = await create(models, a_provider(fake))
            fake._models = ["kept", "new"]
            request = rpc.RefreshProviderRequest(provider_id=created.id, request_id="again")
            answer = await models.RefreshProvider(request)
            assert (answer.added, answer.removed) == (["mine/new"], ["mine/old"])
            assert await handles(models, providers=["mine"]) == ["mine/kept", "mine/new"]
            count = len(fake.heard)
            assert await models.RefreshProvider(request) == answer
            assert len(fake.heard) == count
            fake.key = "changed-there"
            with pytest.raises(MnemeshError) as refused:
                await models.RefreshProvider(rpc.RefreshProviderRequest(provider_id=created.id))
            assert refused.value.reason == "PROVIDER_AUTH"
            assert (
                await models.GetProvider(rpc.GetProviderRequest(provider_id=created.id))
            ).provider == answer.provider
        with pytest.raises(MnemeshError) as away:
            await models.RefreshProvider(rpc.RefreshProviderRequest(provider_id=created.id))
        assert away.value.reason == "PROVIDER_UNAVAILABLE"
        assert await handles(models, providers=["mine"]) == ["mine/kept", "mine/new"]


class TestOnSqlite(ProviderTests):
    @pytest_asyncio.fixture
    async def models(self, tmp_path: Path) -> "AsyncIterator[ModelServiceAsyncStub]":
        async with served(settings(tmp_path)) as stub:
            yield stub


@pytest.mark.full
class TestOnPostgres(ProviderTests):
    @pytest_asyncio.fixture
    async def models(self, tmp_path: Path, postgres_url: str, key_file: Path) -> "AsyncIterator[ModelServiceAsyncStub]":
        config = settings(tmp_path, database_url=postgres_url, secrets_key_file=str(key_file))
        async with served(config) as stub:
            yield stub

    async def test_credentials_are_refused_without_a_key_file(self, tmp_path: Path, postgres_url: str) -> None:
        async with served(settings(tmp_path, database_url=postgres_url)) as models, Guarded() as fake:
            with pytest.raises(MnemeshError) as refused:
                await create(models, a_provider(fake))
            assert refused.value.reason == "FAILED_PRECONDITION"
            assert "MNEMESH_SECRETS_KEY_FILE" in refused.value.message
            assert not fake.heard
            bare = rpc.CreateProviderRequest(provider=a_provider(fake))
            assert not (await models.CreateProvider(bare)).provider.has_api_key

    async def test_change_takes_effect_on_other_replicas(
        self, tmp_path: Path, postgres_url: str, key_file: Path
    ) -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        config = settings(tmp_path / "a", database_url=postgres_url, secrets_key_file=str(key_file))
        twin = settings(tmp_path / "b", database_url=postgres_url, secrets_key_file=str(key_file))
        async with served(config) as here, served(twin) as there, Guarded() as fake:
            assert await handles(there) == ["mnemesh/rehearsal"]
            created = await create(here, a_provider(fake))
            async with asyncio.timeout(PATIENCE):
                while await handles(there) == ["mnemesh/rehearsal"]:
                    await asyncio.sleep(0.05)
            assert (await there.GetProvider(rpc.GetProviderRequest(provider_id=created.id))).provider == created
            await here.DeleteProvider(rpc.DeleteProviderRequest(provider_id=created.id))
            async with asyncio.timeout(PATIENCE):
                while await handles(there) != ["mnemesh/rehearsal"]:
                    await asyncio.sleep(0.05)
