"""One-line texts of errors, with what the reader can do about them."""

from __future__ import annotations

from typing import Final

from mnemesh_client.errors import RunFailed
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import MnemeshError, NotFound, Unavailable

_LONGEST: Final = 240
_KEY_VARIABLES: Final = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_ADVICE: Final = {
    "MODEL_UNKNOWN": "name one as provider/model with MNEMESH_MODEL or --model",
    "PROVIDER_PAYMENT_REQUIRED": "the provider's account has no credit left",
    "PROVIDER_RATE_LIMITED": "wait a moment and send the message again",
    "PROVIDER_UNAVAILABLE": "send the message again later, and check OPENAI_BASE_URL if you set it",
    "BLOCK_LABEL_TAKEN": "an agent has one block of each label; create it without that block, or detach the block",
    "CONTEXT_WINDOW_OVERFLOW": "the conversation no longer fits the model's context window",
}

_TEMPLATES: Final = {
    "UNAVAILABLE": "The mesh does not answer. Start it with `mnemesh up`, or run `mnemesh doctor`. ({message})",
    "UNAUTHENTICATED": "{message} Set MNEMESH_TOKEN (see `mnemesh tokens create`) or MNEMESH_AUTH_KEY_FILE.",
    "UNIMPLEMENTED": "The server does not support this request. ({message})",
}

_TLS_FAILURES: Final = ("handshake failed", "Verification Check failed")
"""The message of gRPC if the certificate of a server, or that of this client, is refused."""


def error_text(error: MnemeshError) -> str:
    """Returns the error as one line for a person."""
    message = _one_line(error.message)
    if error.reason == "PROVIDER_AUTH":
        return _refused_key(error.metadata.get("provider", ""), message)
    if error.reason in _ADVICE:
        return f"{message} [{error.reason}]: {_ADVICE[error.reason]}"
    if error.reason == "UNAVAILABLE" and any(text in message for text in _TLS_FAILURES):
        return f"The mesh does not accept the TLS connection. Check MNEMESH_GRPC_TLS_CA_FILE. ({message})"
    if error.reason in _TEMPLATES and not isinstance(error, RunFailed):
        return _TEMPLATES[error.reason].format(message=message)
    return f"{'the turn failed: ' if isinstance(error, RunFailed) else ''}{message} [{error.reason}]"


def _refused_key(provider: str, message: str) -> str:
    """Returns the text for a refused key. The key is of the environment of the mesh, or of a registered provider."""
    command = f"`mnemesh providers update {provider or 'NAME'} --key-file FILE`"
    where = f"Replace it with {command}"
    if (variable := _KEY_VARIABLES.get(provider)) is not None:
        where = f"Check {variable} and restart the mesh, or, if you registered the provider, use {command}"
    return f"{provider or 'The provider'} refused the API key. {where}. ({message})"


def any_error_text(error: Exception) -> str:
    """Returns any exception as one line for a person."""
    if isinstance(error, MnemeshError):
        return error_text(error)
    if isinstance(error, StartupError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    return f"{type(error).__name__}: {_one_line(str(error))} Set MNEMESH_DEBUG=1 to see where it was raised."


def exit_code(error: Exception) -> int:
    """Returns the exit code after an exception: see `mnemesh_cli.main.main`."""
    if isinstance(error, StartupError):
        return 2
    if isinstance(error, RunFailed):
        return 1
    if isinstance(error, NotFound):
        return 3
    # The mesh answers with other reasons if it cannot reach something, such as an MCP server.
    return 4 if isinstance(error, Unavailable) and error.reason == Unavailable.reason else 1


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
