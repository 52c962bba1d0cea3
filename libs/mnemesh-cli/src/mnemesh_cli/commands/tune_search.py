"""`mnemesh tune-search`: fits the constants of search to dialogues of the operator."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from mnemesh_kit.config import StartupError
from mnemesh_kit.extras import install_hint


def tune_search(
    context: typer.Context,
    dialogues: Annotated[
        Path,
        typer.Option(help="File of dialogues with questions and evidence, in our format, LoCoMo's or LongMemEval's."),
    ],
    embedder: Annotated[
        str, typer.Option(envvar="MNEMESH_EMBEDDER", help="The embedder, as provider/model.")
    ] = "mnemesh/wordllama-256",
    base_url: Annotated[
        str, typer.Option(envvar="MNEMESH_EMBEDDER_BASE_URL", help="Base URL of an OpenAI-compatible embeddings API.")
    ] = "",
    dimension: Annotated[
        int, typer.Option(envvar="MNEMESH_EMBEDDER_DIMENSION", help="Vector length of an unknown model.")
    ] = 0,
    start: Annotated[
        str, typer.Option(envvar="MNEMESH_RANKING_FILE", help="The constants in use.", show_default="the built-in ones")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="The file to write if there is a gain.")] = None,
) -> None:
    """Fit the constants of search to your own dialogues, and report the gain.

    The key of an embedder is read from MNEMESH_EMBEDDER_API_KEY.
    """
    try:
        from mnemesh_cli.commands import search_tuning  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError as error:
        raise StartupError(
            f"The package mnemesh-retrieval is not installed. {install_hint('mnemesh-cli', 'tuning')}"
        ) from error
    request = search_tuning.TuningRequest(dialogues, embedder, base_url, dimension, start, out, context.obj.as_json)
    asyncio.run(search_tuning.run(request))
