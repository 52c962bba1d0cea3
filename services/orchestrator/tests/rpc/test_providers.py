"""Providers of organizations, over gRPC and real HTTP, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from mnemesh.agents.v1 import models_pb2 as pb
from mnemesh.agents.v1 import models_service_pb2 as rpc
from mnemesh.agents.v1.models_service_pb2_grpc import ModelServiceStub
from mnemesh_kit.channels import Channels
from mnemesh_kit.clock import FrozenClock
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.principal import DEFAULT_PRINCIPAL, Principal, as_principal
from mnemesh_kit.server import RunningServer
from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.wiring import assemble
from mnemesh_testkit.fakes.anthropic import FakeAnthropic
from mnemesh_testkit.fakes.openai import FakeOpenAI
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from mnemesh.agents.v1.models_service_pb2_grpc import ModelServiceAsyncStub

PATIENCE = 60.0
KEY = "canary/8f3e71-not=a+known_form"
OTHER = Principal("org-00000000-0000-4000-8000-00000000000b", DEFAULT_PRINCIPAL.subject_id)


@asynccontextmanager
async def served(config: Config) -> AsyncIterator[ModelServiceAsyncStub]:
    """Yields a stub of a service whose other services are unreachable."""
    server = RunningServer()
    address = await server.start(await assemble(config, clock=FrozenClock()), config)
    channels = Channels(deadline=PATIENCE)  # the first call imports the SDKs
    try:
        yield ModelServiceStub(channels.channel(address))
    finally:
        await channels.close()
        await server.stop()


def settings(directory: Path, **fields: Any) -> Config:
    unreachable = f"unix:{directory / 'unreachable'}"
    targets = {f"{service}_target": unreachable for service in ("blocks", "recall", "archival", "tools")}
    return Config(**{"port": 0, "data_dir": str(directory), "shutdown_grace_seconds": 0, **targets, **fields})


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "secrets.keys"
    path.write_text("a-secrets-key-of-the-operator-0123456789\n")
    return path


@pytest_asyncio.fixture
async def alone(tmp_path: Path) -> AsyncIterator[ModelServiceAsyncStub]:
    """A service on SQLite, for tests that do not depend on the engine."""
    async with served(settings(tmp_path)) as stub:
        yield stub


class Guarded(FakeOpenAI):
    """Lists its models for requests with the key, and records a key that it refuses."""

    def __init__(self, key: str = KEY, **options: Any) -> None:
        super().__init__(**options)
        self.key = key
        self.heard: list[dict[str, str]] = []

    async def _list_models(self, request: Request) -> Response:
        self.heard.append(dict(request.headers))
        given = request.headers.get("authorization", "")
        if given != f"Bearer {self.key}":
            words = f"{given.removeprefix('Bearer ')} is not the key; you sent {given!r}"
            return JSONResponse({"error": {"message": words, "code": "invalid_api_key"}}, 401)
        return await super()._list_models(request)


def a_provider(fake: FakeOpenAI, name: str = "mine", **fields: Any) -> pb.Provider:
    return pb.Provider(**{"name": name, "type": "vllm", "base_url": fake.base_url, **fields})


def a_key(key: str = KEY) -> pb.ProviderCredentials:
    return pb.ProviderCredentials(api_key=key)


async def create(models: ModelServiceAsyncStub, provider: pb.Provider, key: str = KEY, request_id: str = "") -> Any:
    request = rpc.CreateProviderRequest(provider=provider, credentials=a_key(key), request_id=request_id)
    return (await models.CreateProvider(request)).provider


async def handles(models: ModelServiceAsyncStub, **filters: Any) -> list[str]:
    return [model.handle for model in (await models.ListModels(rpc.ListModelsRequest(**filters))).models]


async def named(models: ModelServiceAsyncStub, handle: str) -> pb.Model:
    return (await models.GetModel(rpc.GetModelRequest(handle=handle))).model


class ProviderTests:
    """The tests that use the store, on each SQL engine."""

    async def test_provider_is_registered_read_updated_and_deleted(self, models: ModelServiceAsyncStub) -> None:
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

    async def test_repeated_request_registers_once(self, models: ModelServiceAsyncStub) -> None:
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

    async def test_provider_is_not_found_by_other_organizations(self, models: ModelServiceAsyncStub) -> None:
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

    async def test_model_overrides_are_applied(self, models: ModelServiceAsyncStub) -> None:
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

    async def test_refresh_reports_added_and_removed_models(self, models: ModelServiceAsyncStub) -> None:
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
    async def models(self, tmp_path: Path) -> AsyncIterator[ModelServiceAsyncStub]:
        async with served(settings(tmp_path)) as stub:
            yield stub


@pytest.mark.full
class TestOnPostgres(ProviderTests):
    @pytest_asyncio.fixture
    async def models(self, tmp_path: Path, postgres_url: str, key_file: Path) -> AsyncIterator[ModelServiceAsyncStub]:
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


async def test_unavailable_provider_can_be_registered(alone: ModelServiceAsyncStub) -> None:
    created = await create(alone, pb.Provider(name="away", type="vllm", base_url="http://127.0.0.1:1/v1"))
    assert "cannot be reached" in created.last_refresh_error
    assert (created.model_count, created.HasField("last_refresh_time")) == (0, False)
    assert (await named(alone, "away/any")).context_window == 32_000


def failing(status: int, body: dict[str, Any], **headers: str) -> Any:
    async def answer(request: Request) -> Response:
        return JSONResponse(body, status, headers)

    return answer


async def html(request: Request) -> Response:
    return HTMLResponse("<html><body>Welcome</body></html>")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (failing(401, {"error": {"message": "No."}}), "PROVIDER_AUTH"),
        (failing(402, {"error": {"message": "Pay."}}), "PROVIDER_PAYMENT_REQUIRED"),
        (failing(429, {"error": {"message": "Wait."}}, **{"retry-after": "9"}), "PROVIDER_RATE_LIMITED"),
        (failing(503, {"error": {"message": "Busy."}}), "PROVIDER_UNAVAILABLE"),
        (failing(404, {"detail": "Not Found"}), "PROVIDER_BAD_ANSWER"),
        (failing(200, {"hello": "world"}), "PROVIDER_BAD_ANSWER"),
        (html, "PROVIDER_BAD_ANSWER"),
    ],
    ids=["401", "402", "429", "503", "404", "no-list", "html"],
)
async def test_check_reports_the_reason_of_a_failure(alone: ModelServiceAsyncStub, answer: Any, reason: str) -> None:
    async with FakeOpenAI(routes=[Route("/elsewhere/v1/models", answer)]) as fake:
        place = pb.Provider(type="openai_compatible", base_url=f"{fake.origin}/elsewhere")
        with pytest.raises(MnemeshError) as refused:
            await alone.CheckProvider(rpc.CheckProviderRequest(provider=place, credentials=a_key()))
        assert refused.value.reason == reason
        assert KEY not in str(refused.value.message) + str(refused.value.metadata)


async def test_check_lists_served_models_and_stores_nothing(alone: ModelServiceAsyncStub) -> None:
    async with Guarded(models=["a", "b"]) as fake:
        target = pb.Provider(type="vllm", base_url=fake.base_url)
        answer = await alone.CheckProvider(rpc.CheckProviderRequest(provider=target, credentials=a_key()))
        assert answer.provider_models == ["a", "b"]
        assert await handles(alone) == ["mnemesh/rehearsal"]
        created = await create(alone, a_provider(fake))
        stored = await alone.CheckProvider(rpc.CheckProviderRequest(provider_id=created.id))
        assert stored.provider_models == ["a", "b"]
        with pytest.raises(MnemeshError) as refused:
            await alone.CheckProvider(rpc.CheckProviderRequest(provider_id=created.id, credentials=a_key("wrong-key")))
        assert refused.value.reason == "PROVIDER_AUTH"
        assert (await alone.GetProvider(rpc.GetProviderRequest(provider_id=created.id))).provider == created
        mnemesh = (await alone.ListProviders(rpc.ListProvidersRequest(name="mnemesh"))).providers[0]
        answer = await alone.CheckProvider(rpc.CheckProviderRequest(provider_id=mnemesh.id))
        assert answer.provider_models == ["rehearsal"]


async def test_anthropic_compatible_server_lists_its_models(alone: ModelServiceAsyncStub) -> None:
    async def models(request: Request) -> Response:
        assert request.headers["x-api-key"] == KEY
        rows = [{"id": "claude-x", "type": "model"}, {"id": "house-model", "type": "model"}]
        return JSONResponse({"data": rows, "has_more": False})

    class Listing(FakeAnthropic):
        def _more_routes(self) -> list[Route]:
            return [Route("/v1/models", models)]

    async with Listing() as fake:
        place = pb.Provider(name="house", type="anthropic", base_url=fake.origin)
        created = await create(alone, place)
        assert not created.last_refresh_error
        assert await handles(alone, providers=["house"]) == ["house/claude-x", "house/house-model"]
        assert (await named(alone, "house/claude-x")).api == pb.MODEL_API_ANTHROPIC_MESSAGES


async def test_providers_of_the_operator_are_listed_and_read_only(tmp_path: Path) -> None:
    async with FakeOpenAI(models=["base-model"]) as fake, Guarded() as own:
        config = settings(tmp_path, openai_base_url=fake.base_url, openai_api_key="sk-operators")
        async with served(config) as models:
            created = await create(models, a_provider(own))
            by_name = rpc.ListProvidersRequest(order_by=rpc.PROVIDER_ORDER_BY_NAME, page_size=2)
            first = await models.ListProviders(by_name)
            by_name.page_token = first.next_page_token
            rest = await models.ListProviders(by_name)
            assert [p.name for p in (*first.providers, *rest.providers)] == ["mine", "mnemesh", "openai"]
            (base,) = (await models.ListProviders(rpc.ListProvidersRequest(types=["openai"]))).providers
            assert (base.category, base.has_api_key) == (pb.PROVIDER_CATEGORY_BASE, True)
            assert await handles(models) == ["mine/fake-model", "mnemesh/rehearsal", "openai/base-model"]
            assert (await named(models, "")).handle == "openai/base-model", "the operator's choice goes first"
            after = rpc.ListProvidersRequest(after_id=created.id, order_by=rpc.PROVIDER_ORDER_BY_NAME)
            assert [p.name for p in (await models.ListProviders(after)).providers] == ["mnemesh", "openai"]
            with pytest.raises(MnemeshError) as taken:
                await create(models, a_provider(own, "openai"))
            assert taken.value.reason == "ALREADY_EXISTS"
            change = rpc.UpdateProviderRequest(provider=pb.Provider(id=base.id), update_mask={"paths": ["disabled"]})
            removal = rpc.DeleteProviderRequest(provider_id=base.id)
            for call in (models.UpdateProvider(change), models.DeleteProvider(removal)):
                with pytest.raises(MnemeshError) as refused:
                    await call
                assert refused.value.reason == "FAILED_PRECONDITION"
            fake._models = ["newer"]
            answer = await models.RefreshProvider(rpc.RefreshProviderRequest(provider_id=base.id))
            assert (answer.added, answer.removed) == (["openai/newer"], ["openai/base-model"])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "provider.name"),
        ({"name": "a/b"}, "provider.name"),
        ({"name": "x" * 101}, "provider.name"),
        ({"type": "mnemesh"}, "provider.type"),
        ({"type": "nobody"}, "provider.type"),
        ({"api": pb.MODEL_API_GEMINI}, "provider.api"),
        ({"api": 99}, "provider.api"),
        ({"base_url": ""}, "provider.base_url"),
        ({"base_url": "file:///etc/passwd"}, "provider.base_url"),
        ({"base_url": "http://user:word@host/v1"}, "provider.base_url"),
        ({"base_url": "http://host/v1?key=1"}, "provider.base_url"),
        ({"base_url": "http://[::1"}, "provider.base_url"),
        ({"base_url": "http://host:99999"}, "provider.base_url"),
        ({"type": "bedrock", "base_url": "", "region": "x/../evil"}, "provider.region"),
        ({"api_version": "a b"}, "provider.api_version"),
    ],
)
async def test_invalid_provider_is_refused_with_its_field(
    alone: ModelServiceAsyncStub, fields: dict[str, Any], field: str
) -> None:
    place = pb.Provider(**{"name": "mine", "type": "vllm", "base_url": "http://127.0.0.1:1/v1", **fields})
    with pytest.raises(MnemeshError) as refused:
        await alone.CreateProvider(rpc.CreateProviderRequest(provider=place))
    assert (refused.value.reason, refused.value.field) == ("INVALID_ARGUMENT", field)
    assert len((await alone.ListProviders(rpc.ListProvidersRequest())).providers) == 1


@pytest.mark.parametrize(
    ("credentials", "field"),
    [
        (pb.ProviderCredentials(api_key="two words"), "credentials.api_key"),
        (pb.ProviderCredentials(api_key="line\nbreak"), "credentials.api_key"),
        (pb.ProviderCredentials(access_key="\N{SNOWMAN}"), "credentials.access_key"),
        (pb.ProviderCredentials(headers=[pb.ProviderHeader(name="a b")]), "credentials.headers[0].name"),
        (pb.ProviderCredentials(headers=[pb.ProviderHeader(name="Host")]), "credentials.headers[0].name"),
        (
            pb.ProviderCredentials(headers=[pb.ProviderHeader(name="x", value="a\r\nb: c")]),
            "credentials.headers[0].value",
        ),
        (
            pb.ProviderCredentials(headers=[pb.ProviderHeader(name="x"), pb.ProviderHeader(name="X")]),
            "credentials.headers[1].name",
        ),
    ],
)
async def test_invalid_credentials_are_refused(
    alone: ModelServiceAsyncStub, credentials: pb.ProviderCredentials, field: str
) -> None:
    place = pb.Provider(name="mine", type="vllm", base_url="http://127.0.0.1:1/v1")
    with pytest.raises(MnemeshError) as refused:
        await alone.CreateProvider(rpc.CreateProviderRequest(provider=place, credentials=credentials))
    assert (refused.value.reason, refused.value.field) == ("INVALID_ARGUMENT", field)


async def test_updated_headers_replace_all_and_keep_values_that_are_not_set(alone: ModelServiceAsyncStub) -> None:
    async with Guarded() as fake:
        credentials = a_key()
        credentials.headers.add(name="X-Team", value="team-one")
        credentials.headers.add(name="X-Old", value="old-one")
        request = rpc.CreateProviderRequest(provider=a_provider(fake), credentials=credentials)
        created = (await alone.CreateProvider(request)).provider
        assert (created.has_api_key, created.has_headers, created.has_access_key) == (True, True, False)
        assert (fake.heard[-1]["x-team"], fake.heard[-1]["x-old"]) == ("team-one", "old-one")
        change = pb.ProviderCredentials(headers=[pb.ProviderHeader(name="x-team")])
        change.headers.add(name="X-New", value="new-one")
        update = rpc.UpdateProviderRequest(provider=pb.Provider(id=created.id), credentials=change)
        await alone.UpdateProvider(update)
        received = fake.heard[-1]
        assert (received["x-team"], received["x-new"], "x-old" in received) == ("team-one", "new-one", False)
        assert received["authorization"] == f"Bearer {KEY}"
        gone = rpc.UpdateProviderRequest(provider=pb.Provider(id=created.id), credentials=a_key(""))
        changed = (await alone.UpdateProvider(gone)).provider
        assert (changed.has_api_key, changed.has_headers) == (False, True)
        assert KEY not in fake.heard[-1]["authorization"]
        assert changed.last_refresh_error


async def test_environment_of_the_operator_is_not_sent_to_providers_of_organizations(
    alone: ModelServiceAsyncStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "the-operators")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Operator: the-operators")
    async with Guarded() as fake:
        assert not (await create(alone, a_provider(fake))).last_refresh_error
        assert "the-operators" not in str(fake.heard)


@pytest.mark.parametrize("credential", ["api_key", "headers"])
async def test_stored_credential_is_not_sent_to_a_new_host(alone: ModelServiceAsyncStub, credential: str) -> None:
    async with Guarded() as fake, FakeOpenAI() as other:
        credentials = a_key()
        credentials.headers.add(name="X-Team", value="team-one")
        request = rpc.CreateProviderRequest(provider=a_provider(fake), credentials=credentials)
        created = (await alone.CreateProvider(request)).provider
        moved = rpc.UpdateProviderRequest(
            provider=pb.Provider(id=created.id, base_url=other.base_url),
            update_mask={"paths": ["base_url"]},
            credentials=pb.ProviderCredentials() if credential == "api_key" else a_key(),
        )
        with pytest.raises(MnemeshError) as refused:
            await alone.UpdateProvider(moved)
        assert (refused.value.reason, refused.value.field) == ("INVALID_ARGUMENT", f"credentials.{credential}")
        assert not other.requests
        moved.credentials.api_key = "sk-of-the-new-host"
        moved.credentials.headers.add(name="X-Team", value="team-two")
        assert (await alone.UpdateProvider(moved)).provider.base_url == other.base_url


async def test_hosts_of_providers_can_be_restricted(tmp_path: Path) -> None:
    async with served(settings(tmp_path, provider_hosts=("models.example",))) as models, Guarded() as fake:
        with pytest.raises(MnemeshError) as refused:
            await create(models, a_provider(fake))
        assert (refused.value.reason, refused.value.field) == ("INVALID_ARGUMENT", "provider.base_url")
        with pytest.raises(MnemeshError):
            await models.CheckProvider(rpc.CheckProviderRequest(provider=a_provider(fake)))
        assert not fake.heard


async def test_embedders_are_listed(tmp_path: Path) -> None:
    config = settings(tmp_path, embedder="house/e5", embedder_base_url="http://127.0.0.1:1/v1", embedder_dimension=384)
    async with served(config) as models:
        every = (await models.ListEmbeddingModels(rpc.ListEmbeddingModelsRequest())).models
        assert [(m.handle, m.dimension, m.offline, m.is_default) for m in every] == [
            ("house/e5", 384, False, True),
            ("mnemesh/hashing-256", 256, True, False),
            ("mnemesh/wordllama-256", 256, True, False),
        ]
        one = await models.ListEmbeddingModels(rpc.ListEmbeddingModelsRequest(handle="house/e5"))
        assert [m.endpoint for m in one.models] == ["http://127.0.0.1:1/v1"]
        after = await models.ListEmbeddingModels(rpc.ListEmbeddingModelsRequest(after_id="mnemesh/hashing-256"))
        assert [m.handle for m in after.models] == ["mnemesh/wordllama-256"]
