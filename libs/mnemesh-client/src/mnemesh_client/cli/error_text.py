"""Errors in one line, with what the reader can do about them."""

from __future__ import annotations

from typing import Final

from mnemesh_kit.errors import MnemeshError

from mnemesh_client.errors import RunFailed

_KEYS: Final = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_ADVICE: Final = {
    "MODEL_UNKNOWN": "name one as provider/model with MNEMESH_MODEL or --model",
    "PROVIDER_PAYMENT_REQUIRED": "the provider's account has no credit left",
    "PROVIDER_RATE_LIMITED": "wait a little and send it again",
    "PROVIDER_UNAVAILABLE": "send it again later, or check OPENAI_BASE_URL where you set one",
    "CONTEXT_WINDOW_OVERFLOW": "the conversation no longer fits the model's window",
}

_BY_REASON: Final = {
    "UNAVAILABLE": "no service answers; `mnemesh up` starts a mesh, `mnemesh doctor` looks into it ({said})",
    "UNAUTHENTICATED": "{said} Set MNEMESH_TOKEN (see `mnemesh tokens create`) or MNEMESH_AUTH_KEY_FILE.",
    "UNIMPLEMENTED": "this server does not answer that yet ({said})",
}


def explain(error: MnemeshError) -> str:
    """The line for a person."""
    said = _short(error.message)
    if error.reason == "PROVIDER_AUTH":
        provider = error.metadata.get("provider", "the provider")
        return f"{provider} refused the key; check {_KEYS.get(provider, 'it')} and start the mesh again ({said})"
    if error.reason in _ADVICE:
        return f"{said} [{error.reason}]: {_ADVICE[error.reason]}"
    if error.reason in _BY_REASON and not isinstance(error, RunFailed):
        return _BY_REASON[error.reason].format(said=said)
    return f"{'the turn failed: ' if isinstance(error, RunFailed) else ''}{said} [{error.reason}]"


def _short(message: str, length: int = 240) -> str:
    line = " ".join(message.split())
    return line if len(line) <= length else f"{line[:length]}…"
