"""The table of vendors: where each is found, and how its API deviates from the standard form.

This is data. docs/providers.md shows it, and a test compares that page with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from mnemesh_orchestrator.model.models import ModelInfo


class Api(StrEnum):
    """A form of requests, and the adapter that implements it."""

    CHAT = "openai_chat"
    RESPONSES = "openai_responses"
    MESSAGES = "anthropic"
    REHEARSAL = "rehearsal"


class Listing(StrEnum):
    """The way to list a server's models with their context windows."""

    TABLE = "table"
    """No usable list: mnemesh's own table is offered."""
    MODELS = "models"
    """GET /models, whose rows may have a context length under one of several names."""
    OLLAMA = "ollama"
    """/models for names; /api/ps and /api/show for the window in use."""
    LM_STUDIO = "lm_studio"
    """/api/v1/models or /api/v0/models, which tell loaded windows from possible ones."""


class Limit(StrEnum):
    """The field of chat completions that limits the length of an answer."""

    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"


@dataclass(frozen=True, slots=True)
class CallIds:
    """The ids of tool calls that a vendor accepts: at most `longest` characters, or exactly that many."""

    longest: int
    is_exact: bool = False
    is_alphanumeric: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One vendor. Figures that could not be verified are conservative."""

    type: str
    title: str
    api: Api = Api.CHAT
    base_url: str | None = None
    """The default base URL; None must be configured. `{region}` is replaced."""
    key_variables: tuple[str, ...] = ()
    """The vendor's usual environment variables, the preferred one first."""
    url_variables: tuple[str, ...] = ()
    is_local: bool = False
    """The server needs no key, and is used only if a base URL names it."""
    listing: Listing = Listing.MODELS
    call_ids: CallIds = CallIds(40)
    limit: Limit = Limit.MAX_TOKENS
    strict_tools: bool = False
    json_schema: bool = True
    """The vendor enforces a schema. If False, plain JSON is requested and the schema is checked afterwards."""
    parallel_flag: bool = False
    named_choice: bool = True
    """tool_choice may be an object that names a tool."""
    required_choice: str = "required"
    """The value for "any tool"."""
    stream_usage: bool = True
    """Usage in a stream requires stream_options. If False, it is always reported and the field is refused."""
    user_after_tool: bool = True
    """A user message may follow the return of a tool."""
    returns_reasoning: bool = False
    """Messages of the assistant must have `reasoning_content`, if only an empty one."""
    thinking_switch: bool = False
    """{"thinking": {"type": …}} switches thinking on and off."""
    tool_description_chars: int | None = None
    """The longest description of a tool."""
    openapi_schemas: bool = False
    """Schemas of tools are in the subset of OpenAPI."""
    signs_calls: bool = False
    """Tool calls are signed, and their signatures must be returned."""


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
        tool_description_chars=1_024,
    ),
    Dialect(
        type="openai_compatible",
        title="a server that speaks OpenAI's chat completions",
        is_local=True,
        strict_tools=True,
        parallel_flag=True,
        tool_description_chars=1_024,
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
        tool_description_chars=1_024,
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
        openapi_schemas=True,
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
    """Returns the dialect of the vendor of a model."""
    return dialect_for(model.provider_type or model.provider, model.endpoint)


def dialect_for(provider_type: str, endpoint: str | None) -> Dialect:
    """Returns the dialect of a type at an endpoint. A foreign server under OpenAI's name is treated as unknown."""
    if provider_type == "openai" and not is_official_endpoint(endpoint):
        return DIALECTS["openai_compatible"]
    return DIALECTS.get(provider_type, DIALECTS["openai_compatible"])


def is_official_endpoint(endpoint: str | None) -> bool:
    """Returns whether a base URL is OpenAI's own or Azure's. None is."""
    if endpoint is None:
        return True
    host = urlsplit(endpoint).hostname or ""
    return host == "openai.com" or host.endswith((".openai.com", ".openai.azure.com"))
