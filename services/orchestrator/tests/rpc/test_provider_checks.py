"""What the service checks of providers: their answers, settings, credentials and hosts."""

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mnemesh.agents.v1 import models_pb2 as pb
from mnemesh.agents.v1 import models_service_pb2 as rpc
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, as_principal
from mnemesh_kit.errors import MnemeshError
from mnemesh_orchestrator.errors import EmbedderUnknown
from mnemesh_orchestrator.llm.embedders import EmbedderDirectory
from mnemesh_orchestrator.usecases import providers
from mnemesh_testkit.fakes.anthropic import FakeAnthropic
from mnemesh_testkit.fakes.openai import FakeOpenAI
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from .provider_calls import KEY, Guarded, a_key, a_provider, create, handles, named, served, settings

if TYPE_CHECKING:
    from mnemesh.agents.v1.models_service_pb2_grpc import ModelServiceAsyncStub


async def test_unavailable_provider_can_be_registered(alone: "ModelServiceAsyncStub") -> None:
    created = await create(alone, pb.Provider(name="away", type="vllm", base_url="http://127.0.0.1:1/v1"))
    assert "away cannot be reached: 127.0.0.1:1: connection refused." in created.last_refresh_error
    assert (created.model_count, created.HasField("last_refresh_time")) == (0, False)
    assert (await named(alone, "away/any")).context_window == 32_000


async def test_provider_that_does_not_answer_is_registered_with_the_reason_within_a_bounded_time(
    alone: "ModelServiceAsyncStub", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "LOOK_SECONDS", 0.2)
    silence = asyncio.Event()

    async def wait(request: Request) -> Response:
        await silence.wait()
        return JSONResponse({})

    async with FakeOpenAI(routes=[Route("/silent/v1/models", wait)]) as fake:
        place = pb.Provider(name="silent", type="openai_compatible", base_url=f"{fake.origin}/silent")
        created = await create(alone, place)
        assert "did not list its models" in created.last_refresh_error
        with pytest.raises(MnemeshError) as refused:
            await alone.CheckProvider(rpc.CheckProviderRequest(provider=place, credentials=a_key()))
        assert refused.value.reason == "PROVIDER_TIMEOUT"
        assert fake.origin in refused.value.message
        silence.set()


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
async def test_check_reports_the_reason_of_a_failure(alone: "ModelServiceAsyncStub", answer: Any, reason: str) -> None:
    async with FakeOpenAI(routes=[Route("/elsewhere/v1/models", answer)]) as fake:
        place = pb.Provider(type="openai_compatible", base_url=f"{fake.origin}/elsewhere")
        with pytest.raises(MnemeshError) as refused:
            await alone.CheckProvider(rpc.CheckProviderRequest(provider=place, credentials=a_key()))
        assert refused.value.reason == reason
        assert KEY not in str(refused.value.message) + str(refused.value.metadata)


async def test_check_lists_served_models_and_stores_nothing(alone: "ModelServiceAsyncStub") -> None:
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


async def test_anthropic_compatible_server_lists_its_models(alone: "ModelServiceAsyncStub") -> None:
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
        ({"base_url": "http://host/v1#part"}, "provider.base_url"),
        ({"base_url": "http://host/v1#"}, "provider.base_url"),
        ({"base_url": "http://host/v1?"}, "provider.base_url"),
        ({"base_url": "http://host/v1?key=1"}, "provider.base_url"),
        ({"base_url": "http://[::1"}, "provider.base_url"),
        ({"base_url": "http://host:99999"}, "provider.base_url"),
        ({"type": "bedrock", "base_url": "", "region": "x/../evil"}, "provider.region"),
        ({"api_version": "a b"}, "provider.api_version"),
    ],
)
async def test_invalid_provider_is_refused_with_its_field(
    alone: "ModelServiceAsyncStub", fields: dict[str, Any], field: str
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
    alone: "ModelServiceAsyncStub", credentials: pb.ProviderCredentials, field: str
) -> None:
    place = pb.Provider(name="mine", type="vllm", base_url="http://127.0.0.1:1/v1")
    with pytest.raises(MnemeshError) as refused:
        await alone.CreateProvider(rpc.CreateProviderRequest(provider=place, credentials=credentials))
    assert (refused.value.reason, refused.value.field) == ("INVALID_ARGUMENT", field)


async def test_updated_headers_replace_all_and_keep_values_that_are_not_set(alone: "ModelServiceAsyncStub") -> None:
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
    alone: "ModelServiceAsyncStub", monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "the-operators")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Operator: the-operators")
    async with Guarded() as fake:
        assert not (await create(alone, a_provider(fake))).last_refresh_error
        assert "the-operators" not in str(fake.heard)


@pytest.mark.parametrize("credential", ["api_key", "headers"])
async def test_stored_credential_is_not_sent_to_a_new_host(alone: "ModelServiceAsyncStub", credential: str) -> None:
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


async def test_private_addresses_are_refused_with_authentication(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("k" * 40)
    async with Guarded() as fake:
        async with served(settings(tmp_path)) as models:
            before = await create(models, a_provider(fake))
        async with served(settings(tmp_path, auth_key_file=str(tmp_path / "keys"))) as models:
            with as_principal(DEFAULT_PRINCIPAL):
                for url in (
                    fake.base_url,
                    "http://localhost:1/v1",
                    "http://[::ffff:10.0.0.1]/v1",
                    "http://2130706433/",
                ):
                    place = pb.Provider(name="inside", type="vllm", base_url=url)
                    for call in (create(models, place), models.CheckProvider(rpc.CheckProviderRequest(provider=place))):
                        with pytest.raises(MnemeshError, match="MNEMESH_PROVIDER_HOSTS") as refused:
                            await call
                        assert (refused.value.reason, refused.value.field) == ("INVALID_ARGUMENT", "provider.base_url")
                named = pb.Provider(name="resolved", type="vllm", base_url=f"http://{socket.gethostname()}:1/v1")
                assert (await create(models, named)).last_refresh_error
                with pytest.raises(MnemeshError, match="not public") as refused:
                    await models.RefreshProvider(rpc.RefreshProviderRequest(provider_id=before.id))
                assert refused.value.reason == "PROVIDER_UNAVAILABLE"
        assert len(fake.heard) == 1


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


@pytest.mark.parametrize(
    ("given", "is_there"),
    [
        ({}, False),
        ({"openai_api_key": "sk-any"}, True),
        ({"embedder_api_key": "sk-any"}, True),
        ({"openai_api_key": "sk-any", "openai_base_url": "http://127.0.0.1:1/v1"}, False),
    ],
)
async def test_embedder_of_openai_needs_a_key_and_the_error_names_the_setting(
    tmp_path: Path, given: dict[str, str], is_there: bool
) -> None:
    directory = EmbedderDirectory(settings(tmp_path, **given).default_embedder)
    handle = "openai/text-embedding-3-small"
    assert (handle in {model.handle for model in await directory.models()}) == is_there
    if is_there:
        await directory.require(handle)
    else:
        with pytest.raises(EmbedderUnknown, match="set OPENAI_API_KEY, or MNEMESH_EMBEDDER_API_KEY"):
            await directory.require(handle)
    await directory.require("mnemesh/wordllama-256")
    with pytest.raises(EmbedderUnknown, match="MNEMESH_EMBEDDER_BASE_URL"):
        await directory.require("acme/unknown")
