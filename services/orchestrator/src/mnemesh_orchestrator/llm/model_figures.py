"""The windows and prices of models that vendors publish: a file that scripts/generate_model_figures.py writes."""

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from mnemesh_types.usage import Usage

from mnemesh_orchestrator.model.models import ModelPrice

_VERSION: Final = re.compile(r"-(?:latest|\d{4}-\d{2}-\d{2}|\d{8}|\d{4})(?:-v\d+(?::\d+)?)?$|-v\d+:\d+$")
"""The end of a name that says which version of a model is meant."""


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """The context window of a model, and its prices for short requests."""

    context_window: int | None
    price: ModelPrice


def model_figures(type_: str, name: str) -> ModelFigures | None:
    """Returns the figures of a model, or of the model of which `name` is a version; None if they are not known.

    Args:
        type_: the type of the provider.
        name: the provider's name of the model.
    """
    models = _figures().get(type_, {})
    row = models.get(name) or models.get(_VERSION.sub("", name))
    if row is None:
        return None
    window, *prices = row
    return ModelFigures(window, ModelPrice(*prices))


def cost_of(usage: Usage, price: ModelPrice | None) -> int | None:
    """Returns the cost of tokens in billionths of a US dollar; None if the tokens or a price are not known.

    Cached tokens whose price is not known cost as much as others.
    """
    if price is None or price.input is None or price.output is None:
        return None
    if usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    read, written = usage.cached_input_tokens or 0, usage.cache_write_tokens or 0
    plain = max(0, usage.prompt_tokens - read - written)
    millionths = (
        plain * price.input
        + read * (price.input if price.cached_input is None else price.cached_input)
        + written * (price.input if price.cache_write is None else price.cache_write)
        + usage.completion_tokens * price.output
    )
    return round(millionths / 1_000)


@cache
def _figures() -> dict[str, dict[str, list[int | None]]]:
    text = files(__package__).joinpath("model_figures.json").read_text()
    figures: dict[str, dict[str, list[int | None]]] = json.loads(text)
    return figures
