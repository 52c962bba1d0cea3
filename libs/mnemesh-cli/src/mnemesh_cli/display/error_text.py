"""One-line texts of errors, with what the reader can do about them."""

import re
from typing import Final
from urllib.parse import unquote

from mnemesh_client.errors import RunFailed
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import MnemeshError, NotFound, Unavailable

_LONGEST: Final = 480
_KEY_VARIABLES: Final = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_URL_VARIABLES: Final = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}
_ADVICE: Final = {
    "MODEL_UNKNOWN": "name one as provider/model with MNEMESH_MODEL or --model",
    "PROVIDER_PAYMENT_REQUIRED": "the provider's account has no credit left",
    "PROVIDER_RATE_LIMITED": "wait a moment and send the message again",
    "BLOCK_LABEL_TAKEN": "an agent has one block of each label; create it without that block, or detach the block",
    "CONTEXT_WINDOW_OVERFLOW": "the conversation no longer fits the model's context window",
}

_TEMPLATES: Final = {
    "UNAVAILABLE": "The mesh does not answer. Start it with `mnemesh up`, or run `mnemesh doctor`. ({message})",
    "UNAUTHENTICATED": "{message} Set MNEMESH_TOKEN (see `mnemesh tokens create`) or MNEMESH_AUTH_KEY_FILE.",
    "UNIMPLEMENTED": "The server does not support this request. `mnemesh version` compares the versions. ({message})",
    "DEADLINE_EXCEEDED": "The mesh did not answer in time. It is busy, or what it asks is slow: run `mnemesh doctor`. "
    "({message})",
}
_GRPC_TEXTS: Final = tuple(
    (re.compile(pattern, re.DOTALL), text)
    for pattern, text in (
        (
            r".*(?:ipv[46]|unix):(\S+?): Failed to connect to remote host: (?:connect: )?([^(:]+?)(?: \(\d+\))?",
            r"\1: \2",
        ),
        (r".*(?:ipv[46]|unix):(\S+?): connection attempt timed out.*", r"\1: it does not speak gRPC, or is too slow"),
        (r"(?:DNS resolution failed for|errors resolving) ([^\s:]+(?::\d+)?):?.*", r"\1: the host is not known"),
        (r"(?:failed to connect to all addresses|connections to all backends failing).*", "it cannot be reached"),
        (r"Received http2 header with status: (\d+).*", r"it answers with the HTTP status \1 instead of gRPC"),
        (r"Deadline Exceeded", "the time limit of the call has passed"),
        (r"Locally cancelled.*|CANCELLED", "the call was cancelled"),
        (r"Method not found!.*", "it does not know the call"),
        (r"\w+: (?:Sent|Received) message larger than max \(\d+ vs\. (\d+)\)", r"a message is larger than \1 bytes"),
        (
            r"(?:Socket closed|Connection reset|recvmsg|sendmsg|RST_STREAM|Received RST|GOAWAY|keepalive).*",
            "the connection broke",
        ),
        (
            r"(?:Broken pipe|ping timeout|Stream removed|Internal error from Core|Transport closed).*",
            "the connection broke",
        ),
    )
)
"""The texts of gRPC's own library, which are not ours, and what they mean."""

_TLS_FAILURES: Final = ("handshake failed", "Verification Check failed")
"""The message of gRPC if the certificate of a server, or that of this client, is refused."""


def error_text(error: MnemeshError) -> str:
    """Returns the error as one line for a person."""
    message = _one_line(plain_message(error))
    if error.reason == "PROVIDER_AUTH":
        return _refused_key(error.metadata.get("provider", ""), message)
    if error.reason == "PROVIDER_UNAVAILABLE":
        return f"{message} [{error.reason}]: {_advice_on_address(error.metadata.get('provider', ''))}"
    if error.reason in _ADVICE:
        return f"{message} [{error.reason}]: {_ADVICE[error.reason]}"
    if error.reason == "UNAVAILABLE" and any(text in message for text in _TLS_FAILURES):
        return f"The mesh does not accept the TLS connection. Check MNEMESH_GRPC_TLS_CA_FILE. ({message})"
    if error.reason in _TEMPLATES and not isinstance(error, RunFailed):
        return _TEMPLATES[error.reason].format(message=message)
    return f"{'the turn failed: ' if isinstance(error, RunFailed) else ''}{message} [{error.reason}]"


def plain_message(error: MnemeshError) -> str:
    """Returns the message of an error, in plain words if it is one of gRPC's library. Those of TLS stay."""
    if not any(text in error.message for text in _TLS_FAILURES):
        for pattern, text in _GRPC_TEXTS:
            if (match := pattern.fullmatch(error.message)) is not None:
                return unquote(match.expand(text))
    return error.message


def _refused_key(provider: str, message: str) -> str:
    """Returns the text for a refused key. The key is of the environment of the mesh, or of a registered provider."""
    command = f"`mnemesh providers update {provider or 'NAME'} --key-file FILE`"
    where = f"Replace it with {command}"
    if (variable := _KEY_VARIABLES.get(provider)) is not None:
        where = f"Check {variable} and restart the mesh, or, if you registered the provider, use {command}"
    return f"{provider or 'The provider'} refused the API key. {where}. ({message})"


def _advice_on_address(provider: str) -> str:
    """Returns what to do about a provider that does not answer. Its address is of the environment, or registered."""
    command = f"`mnemesh providers update {provider or 'NAME'} --base-url URL`"
    if (variable := _URL_VARIABLES.get(provider)) is not None:
        command = f"{variable}, or, if you registered the provider, use {command}"
        return f"try again later; if the address is wrong, check {command}"
    return f"try again later; if the address is wrong, use {command}"


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
