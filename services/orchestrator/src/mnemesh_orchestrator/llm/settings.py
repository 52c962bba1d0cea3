"""Vendors and the settings of providers: where a vendor is found, how its API deviates, and sealed credentials."""

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Final
from urllib.parse import unquote, urlsplit

from mnemesh_kit.secret_variables import SecretBox

from mnemesh_orchestrator.llm.port import DEFAULT_LIMITS, CallLimits
from mnemesh_orchestrator.model.models import Credentials, ProviderDraft, ProviderRecord, SealedCredentials

SETTING_OF_HOSTS: Final = "MNEMESH_PROVIDER_HOSTS"


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


@lru_cache
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


_MIN_SECRET_CHARACTERS: Final = 6
_DEFAULT_REGION: Final = "us-east-1"
_CREDENTIALS_IN_URL: Final = re.compile(r"(?i)(?P<scheme>https?://)(?P<credentials>[^/?#]*)@(?P<rest>.*)")
_VERSION_PATH: Final = re.compile(r"/v\d+(?:beta\d*)?(?:/|$)|/openai(?:/|$)|/api/v\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """The settings of one provider, enough to create its client at any time.

    `name` is the first part of its models' handles, `type` a key of DIALECTS. A local type without a key is a server
    that needs none.
    """

    name: str
    type: str
    api: Api | None = None
    """The form of its requests; None takes the type's own."""
    base_url: str | None = None
    """The URL of its API. Credentials in it are moved to `headers`."""
    api_key: str | None = field(default=None, repr=False)
    api_version: str | None = None
    """The version of Azure's dated API. Without it, Azure's v1 API is called."""
    region: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers that are sent with each request."""
    is_registered: bool = False
    """True for an organization's own provider: nothing of the operator's environment is sent."""
    dialect: Dialect = field(init=False, repr=False)
    """The dialect of its vendor."""

    def __post_init__(self) -> None:
        """Moves credentials in the base URL, `https://user:password@host`, to a header of basic authentication."""
        found = _CREDENTIALS_IN_URL.match(self.base_url or "")
        if found is not None:
            object.__setattr__(self, "base_url", f"{found['scheme']}{found['rest']}")
            basic = b64encode(unquote(found["credentials"]).encode()).decode()
            object.__setattr__(self, "headers", {"Authorization": f"Basic {basic}", **self.headers})
        object.__setattr__(self, "dialect", dialect_for(self.type, self.base_url))

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that no message may quote. Shorter values could be any word."""
        values = (self.api_key or "", *self.headers.values())
        return tuple(
            sorted({secret for secret in values if len(secret) >= _MIN_SECRET_CHARACTERS}, key=len, reverse=True)
        )

    @property
    def api_in_use(self) -> Api:
        """The API that its client uses."""
        return self.api or self.dialect.api

    @property
    def endpoint(self) -> str | None:
        """The URL that its client calls; None if it is not configured."""
        if self.type == "azure" and self.base_url is not None:
            return _azure_endpoint(self.base_url, self.api_version)
        if self.base_url is None:
            default = self.dialect.base_url
            return None if default is None else default.replace("{region}", self.region or _DEFAULT_REGION)
        # Users of Ollama and similar servers usually configure the server instead of its API.
        if self.dialect.is_local and self.type != "openai" and not _VERSION_PATH.search(urlsplit(self.base_url).path):
            return f"{self.base_url.rstrip('/')}/v1"
        return self.base_url


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmSettings:
    """All settings of the operator."""

    providers: tuple[ProviderSettings, ...] = ()
    default_model: str | None = None
    """The handle that a new agent gets. Without it, the configured providers decide."""
    context_windows: Mapping[str, int] = field(default_factory=dict)
    """Context windows in tokens by handle. They override every other source."""
    limits: CallLimits = DEFAULT_LIMITS


def configured_providers(env: Mapping[str, str], service: str, types: tuple[str, ...]) -> tuple[ProviderSettings, ...]:
    """Returns the providers of these types that the environment configures, each under its type's own name.

    The key is read from `MNEMESH_<SERVICE>_<TYPE>_API_KEY`, `MNEMESH_<TYPE>_API_KEY` or the vendor's usual variable, in
    this order. The same holds for `_BASE_URL`, `_API`, `_API_VERSION` and `_REGION`.

    Raises:
        ValueError: `_API` is not an API.
    """
    configured = (_configured(env, service, DIALECTS[name]) for name in types)
    return tuple(settings for settings in configured if settings is not None)


def _configured(env: Mapping[str, str], service: str, dialect: Dialect) -> ProviderSettings | None:
    def setting(suffix: str, *vendor_names: str) -> str | None:
        own = f"{dialect.type.upper()}_{suffix}"
        names = (f"MNEMESH_{service}_{own}", f"MNEMESH_{own}", *vendor_names)
        return next((env[name] for name in names if env.get(name)), None)

    key, url = setting("API_KEY", *dialect.key_variables), setting("BASE_URL", *dialect.url_variables)
    has_all = url is not None if dialect.is_local or dialect.base_url is None else (key or url) is not None
    if not has_all:
        return None
    versions = ("AZURE_OPENAI_API_VERSION", "AZURE_API_VERSION") if dialect.type == "azure" else ()
    regions = ("AWS_REGION", "AWS_DEFAULT_REGION") if dialect.type == "bedrock" else ()
    api = setting("API")
    return ProviderSettings(
        name=dialect.type,
        type=dialect.type,
        api=None if api is None else Api(api),
        base_url=url,
        api_key=key,
        api_version=setting("API_VERSION", *versions),
        region=setting("REGION", *regions),
    )


def _azure_endpoint(base_url: str, api_version: str | None) -> str:
    """Returns the root of Azure's API: v1 has the deployment in the body, a dated version in the path."""
    root = base_url.rstrip("/").removesuffix("/v1").removesuffix("/openai")
    return f"{root}/openai" if api_version else f"{root}/openai/v1"


class CredentialSealer:
    """Seals each credential for the one provider that it belongs to."""

    def __init__(self, box: SecretBox) -> None:
        self._box = box

    def seal(self, record: ProviderRecord, changes: Credentials) -> SealedCredentials:
        """Returns the credentials of the record after a change. No stored credential is opened.

        A key that is None is kept, an empty one is deleted. If headers are given, they replace all stored ones; a
        header without a value keeps its stored value, or is left out if there is none.

        Raises:
            SecretsKeyMissing: this server cannot store secrets.
        """
        stored = record.credentials
        headers = stored.headers
        if changes.headers:
            stored_values = {name.lower(): value for name, value in stored.headers}
            sealed = [
                (
                    name,
                    stored_values.get(name.lower())
                    if value is None
                    else self._box.seal(value, _header_context(record, name)),
                )
                for name, value in changes.headers
            ]
            headers = tuple((name, value) for name, value in sealed if value is not None)
        return SealedCredentials(
            self._seal_one(record, "api_key", stored.api_key, changes.api_key),
            self._seal_one(record, "access_key", stored.access_key, changes.access_key),
            headers,
        )

    def resealed(self, record: ProviderRecord) -> SealedCredentials:
        """Returns the credentials of a record, encrypted with the first key. Raises SecretUnreadable."""

        def one(name: str, sealed: bytes | None) -> bytes | None:
            return None if sealed is None else self._box.resealed(sealed, _context(record, name))

        stored = record.credentials
        headers = tuple(
            (name, self._box.resealed(value, _header_context(record, name))) for name, value in stored.headers
        )
        return SealedCredentials(one("api_key", stored.api_key), one("access_key", stored.access_key), headers)

    def open_settings(self, record: ProviderRecord) -> ProviderSettings:
        """Returns the settings of a registered provider with its credentials.

        Raises:
            SecretUnreadable: they were sealed with a key that this server does not have.
        """
        sealed = record.credentials
        api_key = None if sealed.api_key is None else self._box.open(sealed.api_key, _context(record, "api_key"))
        headers = {name: self._box.open(value, _header_context(record, name)) for name, value in sealed.headers}
        return replace(bare_settings(record.draft), api_key=api_key, headers=headers)

    def fingerprint(self, secret: str) -> str:
        """Returns a fingerprint that identifies the secret and reveals nothing about it.

        Raises the errors of `seal`.
        """
        return self._box.fingerprint(secret)

    def _seal_one(self, record: ProviderRecord, name: str, stored: bytes | None, secret: str | None) -> bytes | None:
        if secret is None:
            return stored
        return self._box.seal(secret, _context(record, name)) if secret else None


def bare_settings(draft: ProviderDraft) -> ProviderSettings:
    """Returns the settings of a provider without credentials."""
    return ProviderSettings(
        name=draft.name,
        type=draft.type,
        api=None if draft.api is None else Api(draft.api),
        base_url=draft.base_url,
        api_version=draft.api_version,
        region=draft.region,
        is_registered=True,
    )


def with_credentials(settings: ProviderSettings, credentials: Credentials) -> ProviderSettings:
    """Returns the settings with other credentials, to try them. Those that are not given stay."""
    stored = {name.lower(): value for name, value in settings.headers.items()}
    headers = {
        name: value if value is not None else stored.get(name.lower(), "") for name, value in credentials.headers
    }
    return replace(
        settings,
        api_key=settings.api_key if credentials.api_key is None else (credentials.api_key or None),
        headers=headers or settings.headers,
    )


def _context(record: ProviderRecord, name: str) -> str:
    return f"{record.organization_id}/{record.id}/{name}"


def _header_context(record: ProviderRecord, name: str) -> str:
    return _context(record, f"header/{name.lower()}")
