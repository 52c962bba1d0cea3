"""`mnemesh models`, `mnemesh providers` and `mnemesh prompts`: what new agents can be created with."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, Final

import typer
from mnemesh.agents.v1 import models_pb2
from mnemesh_cli.commands.resources import id_column, text_column, with_client
from mnemesh_cli.display.records import Column, count_text, print_done, print_list, print_record
from mnemesh_cli.display.terminal import notice, print_error
from mnemesh_cli.options import LimitOption, YesOption, completer
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import MnemeshError

app = typer.Typer(no_args_is_help=True, help="List and show the models of the mesh.")

_UNITS_OF_A_MILLION: Final = 10**6
_UNITS_PER_DOLLAR: Final = 10**12


def _price(model: models_pb2.Model) -> str:
    """Returns US dollars for a million tokens of input and output."""
    if not model.price.HasField("input") or not model.price.HasField("output"):
        return ""
    dollars = (each * _UNITS_OF_A_MILLION / _UNITS_PER_DOLLAR for each in (model.price.input, model.price.output))
    return "/".join(f"{each:g}" for each in dollars)


_COLUMNS: Final = (
    text_column("MODEL", lambda model: model.handle),
    Column("CONTEXT", lambda model: f"{model.context_window:,}", right=True),
    Column("OUTPUT", lambda model: f"{model.max_output_tokens:,}", right=True),
    Column("$ PER MILLION", _price, right=True),
)


@app.command("list")
@with_client
async def list_models(mnemesh: Mnemesh, limit: LimitOption = 1000) -> None:
    """List the models that agents can use, with their price for input and output."""
    rows = [model async for model in mnemesh.models.list(limit=limit) if not model.hidden]
    await print_list(rows, _COLUMNS, empty="There are no models.")


@app.command("show")
@with_client
async def show(
    mnemesh: Mnemesh,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="As provider/model.", show_default="the default", autocompletion=completer("model")
        ),
    ] = "",
) -> None:
    """Show a model, or the default model of new agents."""
    print_record(await mnemesh.models.get(model))


providers_app = typer.Typer(no_args_is_help=True, help="Create, list, show, change, check and delete model providers.")

ProviderArgument = Annotated[
    str, typer.Argument(metavar="PROVIDER", help="Id or name of the provider.", autocompletion=completer("provider"))
]
_PROVIDER_COLUMNS = (
    text_column("NAME", lambda row: row.name),
    text_column("TYPE", lambda row: row.type),
    Column("OWNER", lambda row: "own" if row.category == models_pb2.PROVIDER_CATEGORY_BYOK else "server"),
    Column("KEY", lambda row: "yes" if row.has_api_key else "no"),
    Column("MODELS", lambda row: "disabled" if row.disabled else str(row.model_count), right=True),
    id_column(),
)
with_patient_client: Final = partial(with_client, deadline=120.0)
"""For commands whose calls wait for a provider."""
_DEFAULT_SECONDS: Final = 5.0
_MODELS = (Column("MODEL", lambda row: row["model"]),)


@providers_app.command("create")
@with_patient_client
async def create_provider(
    mnemesh: Mnemesh,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the provider: the first part of model handles.")],
    type: Annotated[  # noqa: A002
        str, typer.Option(help="Provider type: openai, anthropic, groq, openai_compatible, …")
    ],
    base_url: Annotated[str | None, typer.Option(help="Base URL of the API.", show_default="the vendor's URL")] = None,
    api_version: Annotated[str | None, typer.Option(help="API version. Only for Azure.")] = None,
    region: Annotated[str | None, typer.Option(help="Region. Only for Bedrock.")] = None,
    key_file: Annotated[
        typer.FileText | None,
        typer.Option(help="File with the API key, or - for stdin.", show_default="prompt on a terminal"),
    ] = None,
) -> None:
    """Create a model provider for your organization and print its id."""
    options = {"base_url": base_url, "api_version": api_version, "region": region}
    fields: dict[str, Any] = {field: value for field, value in options.items() if value is not None}
    api_key = _read_key(key_file)
    async with _announced_default(mnemesh):
        provider = await mnemesh.providers.create(name, type, api_key=api_key, **fields)
        print_done(provider.id, provider)
        if provider.last_refresh_error:
            print_error(f"The provider was created, but its models cannot be listed: {provider.last_refresh_error}")


@providers_app.command("list")
@with_client
async def list_providers(mnemesh: Mnemesh) -> None:
    """List the providers of the server and of your organization."""
    rows = mnemesh.providers.list()
    await print_list(rows, _PROVIDER_COLUMNS, empty="There are no providers.")


@providers_app.command("show")
@with_client
async def show_provider(mnemesh: Mnemesh, key: ProviderArgument) -> None:
    """Show a provider, without its API key."""
    print_record(await mnemesh.providers.get(key))


@providers_app.command("check")
@with_patient_client
async def check_provider(mnemesh: Mnemesh, provider: ProviderArgument) -> None:
    """Check that a provider works, and list its models."""
    rows = [{"model": name} for name in await mnemesh.providers.check(provider)]
    await print_list(rows, _MODELS, empty="The provider works and lists no models.")


@providers_app.command("update")
@with_patient_client
async def update_provider(
    mnemesh: Mnemesh,
    provider: ProviderArgument,
    base_url: Annotated[str | None, typer.Option(help='The new base URL; "" is that of the vendor.')] = None,
    api_version: Annotated[str | None, typer.Option(help="The new API version. Only for Azure.")] = None,
    region: Annotated[str | None, typer.Option(help="The new region. Only for Bedrock.")] = None,
    key_file: Annotated[typer.FileText | None, typer.Option(help="File with the new API key, or - for stdin.")] = None,
    disabled: Annotated[
        bool | None, typer.Option("--disable/--enable", help="Whether its models can be used.", show_default=False)
    ] = None,
) -> None:
    """Change a provider of your organization. `refresh` reads its models again."""
    options = {"base_url": base_url, "api_version": api_version, "region": region, "disabled": disabled}
    fields: dict[str, Any] = {field: value for field, value in options.items() if value is not None}
    key = None if key_file is None else key_file.read().strip()
    if not fields and not key:
        raise typer.BadParameter(
            "Name at least one change. See `mnemesh providers update --help`.", param_hint="options"
        )
    async with _announced_default(mnemesh):
        cleared = {field: value if value != "" else None for field, value in fields.items()}
        print_record(await mnemesh.providers.update(provider, api_key=key or None, **cleared))


@providers_app.command("refresh")
@with_patient_client
async def refresh_provider(mnemesh: Mnemesh, provider: ProviderArgument) -> None:
    """Read the models of a provider again."""
    async with _announced_default(mnemesh):
        answer = await mnemesh.providers.refresh(provider)
        print_done(count_text(answer.provider.model_count, "model"), answer)


@providers_app.command("delete")
@with_client
async def delete_provider(mnemesh: Mnemesh, key: ProviderArgument, yes: YesOption = False) -> None:
    """Delete a provider of your organization, and its API key."""
    provider = await mnemesh.providers.get(key)
    if not yes:
        typer.confirm(f"Delete {provider.name} ({provider.id}) and its API key?", abort=True, err=True)
    async with _announced_default(mnemesh):
        await mnemesh.providers.delete(provider.id)
    print_done(f"deleted {provider.id}", {"deleted": provider.id})


@asynccontextmanager
async def _announced_default(mnemesh: Mnemesh) -> AsyncIterator[None]:
    """Says which model new agents have, if what happens inside changes it."""
    before = await _default(mnemesh)
    yield
    after = await _default(mnemesh)
    if before and after and before != after:
        notice(f"agents that are created without a model now get {after}, not {before}; MNEMESH_MODEL names another")


async def _default(mnemesh: Mnemesh) -> str:
    """Returns the model of new agents; "" if it cannot be found out soon."""
    try:
        return (await asyncio.wait_for(mnemesh.models.default(), _DEFAULT_SECONDS)).handle
    except (MnemeshError, TimeoutError):
        return ""


def _read_key(file: typer.FileText | None) -> str | None:
    """Returns the key from a file or a prompt. There is no option for it: other users can read command lines."""
    if file is not None:
        return file.read().strip() or None
    if not sys.stdin.isatty():
        return None
    return typer.prompt("API key (empty for none)", default="", hide_input=True, show_default=False, err=True) or None


prompts_app = typer.Typer(no_args_is_help=True, help="List and show the system prompts for new agents.")

_PROMPT_COLUMNS = (
    Column("KEY", lambda prompt: prompt.key, flexible=True),
    Column("SOURCE", lambda prompt: "built-in" if prompt.built_in else "operator"),
    Column("CHARACTERS", lambda prompt: str(len(prompt.text)), right=True),
)


@prompts_app.command("list")
@with_client
async def list_prompts(mnemesh: Mnemesh) -> None:
    """List system prompts by key."""
    rows = mnemesh.prompts.list()
    await print_list(rows, _PROMPT_COLUMNS, empty="There are no prompts.")


@prompts_app.command("show")
@with_client
async def show_prompt(
    mnemesh: Mnemesh, key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the prompt.")]
) -> None:
    """Print a system prompt."""
    prompt = await mnemesh.prompts.get(key)
    print_done(prompt.text, prompt)
