"""Which model the first agent talks to, chosen from what the environment offers."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Final

from engram_kit.config import ConfigError, StartupError

REHEARSAL: Final = "engram/rehearsal"
_OPENAI: Final = "openai/gpt-4.1-mini"
_ANTHROPIC: Final = "anthropic/claude-sonnet-4-5"
_KEYS: Final = {"openai": ("OPENAI_API_KEY", "OPENAI_BASE_URL"), "anthropic": ("ANTHROPIC_API_KEY",)}
_LISTING_SECONDS: Final = 5.0


async def choose_model(env: Mapping[str, str]) -> str:
    """The handle of the model: ENGRAM_MODEL; else by OPENAI_BASE_URL, OPENAI_API_KEY or ANTHROPIC_API_KEY; else the
    built-in rehearsal.

    Raises:
        ConfigError: ENGRAM_MODEL is no handle, or its provider has no key here.
        StartupError: a base URL is given and its server does not tell its models.
    """
    named = env.get("ENGRAM_MODEL")
    if named:
        return _checked(named, env)
    if env.get("OPENAI_BASE_URL"):
        base_url, key = env["OPENAI_BASE_URL"], env.get("OPENAI_API_KEY", "")
        return f"openai/{await asyncio.to_thread(_first_model, base_url, key)}"
    if env.get("OPENAI_API_KEY"):
        return _OPENAI
    if env.get("ANTHROPIC_API_KEY"):
        return _ANTHROPIC
    return REHEARSAL


def how_to_change(model: str) -> str:
    """What a person can do to get another model."""
    if model == REHEARSAL:
        return "no LLM; set OPENAI_API_KEY, ANTHROPIC_API_KEY or OPENAI_BASE_URL, and ENGRAM_MODEL=provider/model"
    return "change it with ENGRAM_MODEL=provider/model"


def _checked(handle: str, env: Mapping[str, str]) -> str:
    provider, _, model = handle.partition("/")
    if not provider or not model:
        raise ConfigError(f"ENGRAM_MODEL is {handle!r}, which is not of the form provider/model.")
    keys = _KEYS.get(provider, ())
    if keys and not any(env.get(key) for key in keys):
        raise ConfigError(f"ENGRAM_MODEL is {handle}, but {' or '.join(keys)} is not set.")
    return handle


def _first_model(base_url: str, key: str) -> str:
    """The first model that an OpenAI-compatible server lists."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"{base_url.rstrip('/')}/models"
    advice = "name a model with ENGRAM_MODEL=openai/<model>."
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"OPENAI_BASE_URL is {base_url!r}, which is no http URL.")
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310  (the scheme is checked above)
        with urllib.request.urlopen(request, timeout=_LISTING_SECONDS) as answer:  # noqa: S310
            return str(json.load(answer)["data"][0]["id"])
    except urllib.error.HTTPError as error:
        raise StartupError(f"{url} answers {error.code}; check OPENAI_API_KEY, or {advice}") from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise StartupError(f"{url} cannot be reached ({reason}); check OPENAI_BASE_URL, or {advice}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise StartupError(f"{url} lists no models; {advice}") from error
