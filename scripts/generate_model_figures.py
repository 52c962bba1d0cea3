"""Writes the windows and prices of models from the package genai-prices, which takes 100 MB when it is loaded."""

import json
import re
from datetime import date
from pathlib import Path
from typing import Any

from genai_prices import data_snapshot

TARGET = Path(__file__).parents[1] / "services/orchestrator/src/mnemesh_orchestrator/llm/model_figures.json"
AS_OF = date(2026, 11, 29)
"""The day whose prices are written. Some models have different ones from a day on."""
VENDORS = {
    "anthropic": "anthropic",
    "azure": "azure",
    "bedrock": "aws",
    "deepseek": "deepseek",
    "google_ai": "google",
    "groq": "groq",
    "mistral": "mistral",
    "openai": "openai",
    "openrouter": "openrouter",
    "together": "together",
    "xai": "x-ai",
}
"""The types of providers, and the names that the package has for them."""
PRICES = ("input_mtok", "cache_read_mtok", "cache_write_mtok", "output_mtok")


def rendered() -> str:
    """Returns the content of the file: by type and model, the window and the prices of ModelPrice."""
    found = {provider.id: provider for provider in data_snapshot.get_snapshot().providers}
    vendors = {
        type_: {
            re.sub(r"-latest$", "", model.id): [model.context_window, *(price(model, name) for name in PRICES)]
            for model in found[vendor].models
            if price(model, "input_mtok") is not None and price(model, "output_mtok") is not None
        }
        for type_, vendor in sorted(VENDORS.items())
    }
    rows = ",\n".join(
        f"{json.dumps(type_)}: {{\n"
        + ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(models.items()))
        + "\n}"
        for type_, models in vendors.items()
    )
    return f"{{\n{rows}\n}}\n"


def price(model: Any, name: str) -> int | None:
    """Returns a price in millionths of a US dollar per million tokens; that of short requests."""
    prices = model.prices
    if isinstance(prices, list):
        valid = (row.prices for row in reversed(prices) if getattr(row.constraint, "start_date", AS_OF) <= AS_OF)
        prices = next(valid)
    value = getattr(prices, name, None)
    value = getattr(value, "base", value)
    return None if value is None else round(value * 1_000_000)


if __name__ == "__main__":
    TARGET.write_text(rendered())
