"""The vendors that mnemesh knows: where each is found, and how it departs from the API that it otherwise speaks.

Data. docs/providers.md shows it, and a test holds that page against it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from mnemesh_orchestrator.model.models import ModelInfo


class Api(StrEnum):
    """A form of requests, and with it the adapter that speaks it."""

    CHAT = "openai_chat"
    RESPONSES = "openai_responses"
    MESSAGES = "anthropic"
    REHEARSAL = "rehearsal"


class Listing(StrEnum):
    """Where a server tells which models it has, and how long their windows are."""

    TABLE = "table"
    """Nowhere that would be of use: mnemesh's own table offers them."""
    MODELS = "models"
    """GET /models, whose rows may carry a context length under one of several names."""
    OLLAMA = "ollama"
    """/models for names; /api/ps and /api/show for the window that is really in use."""
    LM_STUDIO = "lm_studio"
    """/api/v1/models or /api/v0/models, which tell loaded windows from possible ones."""


class Limit(StrEnum):
    """The field that bounds an answer's length in chat completions."""

    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"


@dataclass(frozen=True, slots=True)
class CallIds:
    """The ids of tool calls that a vendor takes: at most `longest` characters, or exactly so many."""

    longest: int
    is_exact: bool = False
    is_alphanumeric: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One vendor. Where a figure could not be verified, the cautious value stands."""

    type: str
    title: str
    api: Api = Api.CHAT
    base_url: str | None = None
    """None has to be configured; `{region}` is filled in."""
    key_variables: tuple[str, ...] = ()
    """The vendor's usual names of the environment, the first one preferred."""
    url_variables: tuple[str, ...] = ()
    is_local: bool = False
    """Wants no key, and is there only where a base URL says so."""
    listing: Listing = Listing.MODELS
    call_ids: CallIds = CallIds(40)
    limit: Limit = Limit.MAX_TOKENS
    strict_tools: bool = False
    json_schema: bool = True
    """Holds an answer to a schema; False falls back to plain JSON, with the schema checked afterwards."""
    parallel_flag: bool = False
    named_choice: bool = True
    """Takes tool_choice as an object that names a tool."""
    required_choice: str = "required"
    """The word for "some tool"."""
    stream_usage: bool = True
    """Wants stream_options for usage in a stream; False: reports it anyway, and refuses the field."""
    user_after_tool: bool = True
    """A user message may follow a tool's return."""
    assistant_last: bool = True
    """A request may end with the assistant's own words."""
    returns_reasoning: bool = False
    """Wants the reasoning of messages with tool calls back in `reasoning_content`."""
    thinking_switch: bool = False
    """Takes {"thinking": {"type": …}} to turn thinking on or off."""
    signs_calls: bool = False
    """Signs tool calls, and wants the signatures back."""


_TABLE: Final = (
    Dialect(
        type="openai",
        title="OpenAI",
        base_url="https://api.openai.com/v1",
        key_variables=("OPENAI_API_KEY",),
        url_variables=("OPENAI_BASE_URL",),
        listing=Listing.TABLE,
        limit=Limit.MAX_COMPLETION_TOKENS,
        strict_tools=True,
        parallel_flag=True,
    ),
    Dialect(
        type="openai_compatible",
        title="a server that speaks OpenAI's chat completions",
        is_local=True,
        strict_tools=True,
        parallel_flag=True,
    ),
    Dialect(
        type="anthropic",
        title="Anthropic",
        api=Api.MESSAGES,
        base_url="https://api.anthropic.com",
        key_variables=("ANTHROPIC_API_KEY",),
        url_variables=("ANTHROPIC_BASE_URL",),
        listing=Listing.TABLE,
        call_ids=CallIds(64),
        strict_tools=True,
        parallel_flag=True,
        user_after_tool=True,
        assistant_last=False,
    ),
    Dialect(
        type="azure",
        title="Azure OpenAI",
        key_variables=("AZURE_OPENAI_API_KEY", "AZURE_API_KEY"),
        url_variables=("AZURE_OPENAI_ENDPOINT", "AZURE_BASE_URL"),
        listing=Listing.MODELS,
        limit=Limit.MAX_COMPLETION_TOKENS,
        strict_tools=True,
        parallel_flag=True,
    ),
    Dialect(
        type="bedrock",
        title="Amazon Bedrock",
        base_url="https://bedrock-mantle.{region}.api.aws/openai/v1",
        key_variables=("AWS_BEARER_TOKEN_BEDROCK",),
        url_variables=("AWS_BEDROCK_BASE_URL",),
        limit=Limit.MAX_COMPLETION_TOKENS,
    ),
    Dialect(
        type="google_ai",
        title="Google Gemini",
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        url_variables=("GEMINI_BASE_URL",),
        signs_calls=True,
    ),
    Dialect(
        type="groq",
        title="Groq",
        base_url="https://api.groq.com/openai/v1",
        key_variables=("GROQ_API_KEY",),
        url_variables=("GROQ_BASE_URL",),
        limit=Limit.MAX_COMPLETION_TOKENS,
        parallel_flag=True,
    ),
    Dialect(
        type="deepseek",
        title="DeepSeek",
        base_url="https://api.deepseek.com",
        key_variables=("DEEPSEEK_API_KEY",),
        url_variables=("DEEPSEEK_BASE_URL",),
        json_schema=False,
        returns_reasoning=True,
        thinking_switch=True,
    ),
    Dialect(
        type="xai",
        title="xAI",
        base_url="https://api.x.ai/v1",
        key_variables=("XAI_API_KEY",),
        url_variables=("XAI_BASE_URL",),
        limit=Limit.MAX_COMPLETION_TOKENS,
        parallel_flag=True,
    ),
    Dialect(
        type="together",
        title="Together",
        base_url="https://api.together.xyz/v1",
        key_variables=("TOGETHER_API_KEY",),
        url_variables=("TOGETHER_BASE_URL",),
    ),
    Dialect(
        type="mistral",
        title="Mistral",
        base_url="https://api.mistral.ai/v1",
        key_variables=("MISTRAL_API_KEY",),
        url_variables=("MISTRAL_BASE_URL",),
        call_ids=CallIds(9, is_exact=True, is_alphanumeric=True),
        parallel_flag=True,
        required_choice="any",
        stream_usage=False,
        user_after_tool=False,
        assistant_last=False,
    ),
    Dialect(
        type="openrouter",
        title="OpenRouter",
        base_url="https://openrouter.ai/api/v1",
        key_variables=("OPENROUTER_API_KEY",),
        url_variables=("OPENROUTER_BASE_URL",),
        parallel_flag=True,
    ),
    Dialect(
        type="ollama",
        title="Ollama",
        key_variables=("OLLAMA_API_KEY",),
        url_variables=("OLLAMA_BASE_URL",),
        is_local=True,
        listing=Listing.OLLAMA,
    ),
    Dialect(
        type="vllm",
        title="vLLM",
        key_variables=("VLLM_API_KEY",),
        url_variables=("VLLM_API_BASE", "VLLM_BASE_URL"),
        is_local=True,
        parallel_flag=True,
    ),
    Dialect(
        type="lmstudio",
        title="LM Studio",
        key_variables=("LMSTUDIO_API_KEY",),
        url_variables=("LMSTUDIO_BASE_URL",),
        is_local=True,
        listing=Listing.LM_STUDIO,
        call_ids=CallIds(9, is_exact=True, is_alphanumeric=True),
        named_choice=False,
    ),
)

DIALECTS: Final[Mapping[str, Dialect]] = {dialect.type: dialect for dialect in _TABLE}


def dialect_of(model: ModelInfo) -> Dialect:
    """How the vendor behind a model departs from the common form."""
    return dialect_for(model.provider_type or model.provider, model.endpoint)


def dialect_for(provider_type: str, endpoint: str | None) -> Dialect:
    """The dialect of a type at a place. A foreign server under OpenAI's name is no OpenAI; nor is an unknown type."""
    if provider_type == "openai" and not is_official_endpoint(endpoint):
        return DIALECTS["openai_compatible"]
    return DIALECTS.get(provider_type, DIALECTS["openai_compatible"])


def is_official_endpoint(endpoint: str | None) -> bool:
    """Whether a base URL is OpenAI's own, Azure's included; None is."""
    if endpoint is None:
        return True
    host = urlsplit(endpoint).hostname or ""
    return host == "openai.com" or host.endswith((".openai.com", ".openai.azure.com"))
