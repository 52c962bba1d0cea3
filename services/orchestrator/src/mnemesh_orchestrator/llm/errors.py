"""Errors between mnemesh and a model, and the one classifier of what providers report."""

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Final, Self

from mnemesh_kit.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    MnemeshError,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from mnemesh_types.usage import Usage


class ProviderError(MnemeshError):
    """A call to a provider failed.

    `is_retryable` means that the same request may succeed a moment later, so an adapter retries it within its budget
    unless something was streamed. `retry_after` is the provider's own value in seconds, if it gave one. `usage` are the
    tokens that the provider counted nevertheless, and `response_body` is the answer as far as it arrived, as JSON text.
    """

    code = Unavailable.code
    reason = "PROVIDER_UNAVAILABLE"
    is_retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        /,
        *,
        provider: str,
        status: int | None = None,
        retry_after: float | None = None,
        **metadata: str,
    ) -> None:
        status_metadata = {} if status is None else {"status": str(status)}
        retry_metadata = {} if retry_after is None else {"retry_after_seconds": f"{retry_after:g}"}
        super().__init__(message, provider=provider, **status_metadata, **retry_metadata, **metadata)
        self.provider = provider
        self.status = status
        self.retry_after = retry_after
        self.usage = Usage()
        self.response_body: str | None = None

    def redact(self, secrets: Collection[str]) -> Self:
        """Returns this error without the secrets that its text or cause quote.

        Some servers show the key that they refuse.
        """
        for secret in secrets:
            if secret in self.message or any(secret in value for value in self.metadata.values()):
                self.message = self.message.replace(secret, "[key]")
                self.args = (self.message,)
                self.metadata = {name: value.replace(secret, "[key]") for name, value in self.metadata.items()}
            if self.response_body is not None:
                self.response_body = self.response_body.replace(secret, "[key]")
        if secrets:
            self.__cause__, self.__suppress_context__ = None, True  # The cause holds the whole answer of the provider.
        return self


class ProviderAuth(ProviderError):
    """The provider refuses the key, or the key may not use the model."""

    code = FailedPrecondition.code
    reason = "PROVIDER_AUTH"


class ProviderPaymentRequired(ProviderError):
    """The account of the key has no credit left."""

    code = FailedPrecondition.code
    reason = "PROVIDER_PAYMENT_REQUIRED"


class ProviderRefused(ProviderError):
    """The provider refuses the request. A retry would fail again."""

    code = FailedPrecondition.code
    reason = "PROVIDER_REFUSED"


class ProviderContentFilter(ProviderRefused):
    """The provider's content filter refuses the request."""

    reason = "PROVIDER_CONTENT_FILTER"


class ProviderModelUnknown(ProviderRefused):
    """The provider does not have the model, or not for this key."""

    code = NotFound.code
    reason = "MODEL_UNKNOWN"


class ContextOverflow(ProviderRefused):
    """The request does not fit the context window of the model.

    Metadata: `tokens` and `limit`, if the provider named them.
    """

    reason = "CONTEXT_WINDOW_OVERFLOW"


class ProviderRateLimited(ProviderError):
    """Too many requests or tokens at the moment."""

    code = ResourceExhausted.code
    reason = "PROVIDER_RATE_LIMITED"
    is_retryable = True


class ProviderUnavailable(ProviderError):
    """The provider is overloaded, failing or unreachable, or the stream ended early."""

    reason = "PROVIDER_UNAVAILABLE"
    is_retryable = True


class ProviderQuotaExhausted(ProviderRateLimited):
    """The quota of a day or a longer time is used up, so a retry within a minute would fail again."""

    is_retryable = False


class ProviderUnreachable(ProviderUnavailable):
    """The provider cannot be called as it is configured: its URL, its certificate, its credentials."""

    is_retryable = False


class ProviderTimeout(ProviderError):
    """The provider exceeded the configured time limit."""

    code = DeadlineExceeded.code
    reason = "PROVIDER_TIMEOUT"


class ProviderBadAnswer(ProviderError):
    """The answer is neither JSON nor an event stream, or has an undocumented form."""

    reason = "PROVIDER_BAD_ANSWER"


FALLBACK_ERRORS: Final = (ProviderRateLimited, ProviderUnavailable, ProviderTimeout, ProviderModelUnknown)
"""Errors that another model may avoid, such as that of a model that the provider has withdrawn. A refused key, an empty
account or a bad request must be fixed by a person."""


class ModelUnknown(NotFound):
    """No configured provider serves the handle."""

    reason = "MODEL_UNKNOWN"

    def __init__(self, message: str, /, *, model: str, field: str | None = None) -> None:
        super().__init__(message, field=field, model=model)


class ProviderOptionsInvalid(InvalidArgument):
    """`provider_options` is not the text of a JSON object."""

    def __init__(self, message: str) -> None:
        super().__init__(message, field="settings.provider_options")


_MAX_QUOTE_CHARACTERS: Final = 500
_MAX_DEPTH: Final = 8
_MAX_TEXTS: Final = 6
_MAX_CODE_CHARACTERS: Final = 100
_KEYS: Final = re.compile(
    r"(?i)\b(?:(?:sk|pk|rk|xai|gsk|csk|nvapi|pplx|key|api|hf|fw|r8|tgp_v1)[-_][\w*.\-]{6,}|bearer\s+[\w*.\-]{6,}"
    r"|AIza[\w\-]{20,}|AKIA[\dA-Z]{12,}|eyJ[\w\-.]{12,})"
)
_DOCUMENT: Final = re.compile(r'\{\s*"|\[\s*\{')
_MARKUP: Final = re.compile(r"(?i)<(?:!doctype|html|head|body|title|center|h1)\b")

# Where servers put codes, texts and further reports. `raw` is the answer that OpenRouter received from a provider.
_CODE_KEYS: Final = ("code", "type", "status", "reason", "error_code", "errorCode", "error_type", "statusCode")
_CODE_KEYS_2: Final = ("status_code", "http_status", "__type", "quotaId", "errorType", "raw_status_code")
_TEXT_KEYS: Final = ("message", "msg", "error_msg", "error_message", "errorMessage", "status_msg", "description")
_TEXT_KEYS_2: Final = ("error_description", "Message", "title")
_NESTED_KEYS: Final = ("error", "errors", "innererror", "inner_error", "last_error", "detail", "details", "violations")
_NESTED_KEYS_2: Final = ("metadata", "raw", "base_resp", "cause", "Error")

_OVERFLOW_TEXT: Final = re.compile(
    # OpenAI, Azure, DeepSeek, OpenRouter, Mistral, Groq, vLLM, Fireworks, Ollama, llama.cpp, LM Studio, Anthropic
    r"(?i)max(?:imum)? context length|context[ _-]?(?:length|window|size|limit)|prompt (?:is )?too long"
    r"|(?:input|prompt|messages?|request) (?:is|are) too (?:long|large)|too many (?:input |prompt |total )?tokens"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input)|prompt too large"
    r"|input length and `?max_tokens`? exceed|model_max_prompt_tokens|input is too large to process"
    # Gemini, Azure, GitHub Models, watsonx, NIM
    r"|(?:input|prompt)(?: \w+)? tokens? (?:count )?(?:of )?(?:\(?\d+\)? )?(?:exceeds?|cannot exceed)"
    r"|exceeds? the (?:model's )?(?:maximum|available) (?:input|context|number of (?:input )?tokens)"
    r"|max size: \d+ tokens|input length \(?\d+(?: tokens)?\)? exceeds"
    # xAI, vLLM, SGLang, TensorRT, TabbyAPI, SambaNova, Together, TGI, Cohere
    r"|maximum prompt length|longer than the (?:maximum model|model's context) length|sequence length is"
    r"|tokens \+ `?max_(?:new_)?tokens`? must be <=|`inputs` must have less than \d+ tokens"
    r"|prompt length \(?\d+\)? (?:exceeds|is (?:greater|longer))|tokens in the prompt cannot exceed|max_seq_len"
    # DashScope, Moonshot, Zhipu, Volcengine, Qianfan, Bedrock
    r"|range of input length|exceeded model token limit|total message token length|prompt exceeds max length"
    r"|exceed max message tokens|input length \d+ exceeds the maximum|prompt tokens too long|max input characters"
    r"|max input tokens|prompt 超长|输入(?:内容)?(?:过|超)长|超(?:过|出).{0,12}(?:上下文|最大(?:输入)?长度)"
    r"|input length should be|input characters limit|长度超(?:过|出)"
    # General words of gateways
    r"|\btokens? limit exceeded|exceeds? (?:your|the) model'?s? context"
    r"|\btokens?\b(?! per)[^.]{0,60}(?:exceeds?|(?:more|greater|longer|larger) than) (?:the )?"
    r"(?:model|max|limit|context)"
    r"|(?:input|prompt|messages?|request)\b[\w ]{0,20}(?:too long|longer than the maximum)\b"
)
# These name the length of the answer, which a shorter request does not change.
_OUTPUT_TEXT: Final = re.compile(
    r"(?i)output tokens (?:exceed|for )|max(?:imum)? (?:(?:completion|output) )?tokens? (?:exceed|is)"
)
# A request that alone exceeds a minute's tokens: only a shorter one can succeed, whatever the status is.
_TOO_LARGE_FOR_A_MINUTE: Final = re.compile(r"(?i)request too large.{0,200}?tokens per min")
_LONG_STRING: Final = re.compile(r"(?i)maximum length \d{5,}")
_PAYMENT_TEXT: Final = re.compile(
    r"(?i)credit balance is too low|insufficient (?:account )?(?:balance|credits?|quota|funds)"
    r"|exceeded your (?:current|monthly) (?:quota|included credits)|out of (?:available )?credits|spending limit"
    r"|have any credits|free tier (?:[\w ]{1,20} )?has been exhausted"
    r"|requires more credits|billing hard limit|account is (?:in arrears|not in good standing)|余额不足|欠费"
)
_FILTER_TEXT: Final = re.compile(
    # OpenAI, Azure, Anthropic, Bedrock, xAI, OpenRouter, LiteLLM, Gemini
    r"(?i)content management policy|input was flagged|considered high risk|flagged for (?:possible|potential)"
    r"|violat\w{1,4} (?:[\w'’]{1,20} ){0,4}?(?:usage|content|safety|moderation|guardrail|acceptable use) (?:\w{1,20} )?"
    r"(?:polic|guideline)|violat\w{1,4} (?:[\w'’]{1,20} ){0,3}?responsible ai|safety_check_type"
    r"|(?:blocked|rejected|filtered) (?:by|due to|as a result of) (?:[\w'-]{1,20} ){0,3}?"
    r"(?:content|safety|guardrails?|moderation|prohibited_content)\b(?! length)"
    # DeepSeek, DashScope, Volcengine, MiniMax, StepFun, Zhipu
    r"|content exists risk|(?:may contain|contains?) (?:inappropriate|sensitive) (?:content|information)|new_sensitive"
    r"|unsafe or sensitive content|(?:outputted|content) is blocked|敏感(?:内容|信息|词)"
)
_AUTH_TEXT: Final = re.compile(
    r"(?i)api[ _]key (?:is )?(?:not valid|not found|expired|missing|invalid)|no (?:auth credentials|api key)"
    r"|(?:invalid|incorrect|missing) (?:api[ _]key|bearer token|credentials|authentication)|authentication fail"
    r"|\bunauthori[sz]ed\b"
)
_MODEL_TEXT: Final = re.compile(
    r"(?i)model identifier is invalid|(?:models?|deployment)\b.{0,120}?(?:not exist|not found|is not a valid)"
    r"|(?:no such|unknown|invalid) model\b|^model: |model_not_found|模型不存在|not found the model"
    r"|no endpoints found(?! that support image)"
    r"|is not a valid model|\bmodel\b.{0,120}?\bdecommissioned"
)
_LONG_QUOTA: Final = re.compile(
    r"(?i)\b(?:per|a|this|for the) ?(?:day|month|week)\b|per-day|\b(?:daily|weekly|monthly)\b|\b[TR]PD\b"
    r"|usage limit (?:is |has been )?(?:reached|exceeded)"
)
# A limit that the account has set itself, or that of its plan. Anthropic answers 400.
_USAGE_LIMIT: Final = re.compile(
    r"(?i)\b(?:reached|exceeded|hit) (?:your|its|the) (?:[\w-]{1,20} ){0,4}?usage limits?\b|\bregain access on\b"
)
# The request is good, but the model did not write what the server can read as its answer or its call.
_UNREADABLE_TEXT: Final = re.compile(
    # Groq, vLLM with harmony, Ollama, llama.cpp, LM Studio
    r"(?i)failed to call a function|tool call validation failed|(?:model|output).{0,40}could not be parsed"
    r"|unexpected token \d+ while expecting|tokens remaining in message header|unknown role: \S+assistant"
    r"|channel marker present but no channel|error parsing tool call|failed to parse (?:tool call|input at pos)"
)
_UNREADABLE_CODES: Final = frozenset({"toolusefailed", "outputparsefailed", "jsonvalidatefailed"})
_REFUSED_IMAGE: Final = re.compile(r"(?:invalid|empty|unsupported).*image|^image|^failedtodownloadimage")
_WAIT_TEXT: Final = re.compile(
    r"(?i)\b(?:(?:try|trying) again|retry(?:ing)?|wait)(?:[ -](?:in|after|for))?[ :]{1,3}"
    r"(?:about |another |at least )?(?=\d)"
)
_WAIT_PART: Final = re.compile(
    r"(?i)(?:,? ?(?:and )?)(\d{1,9}(?:\.\d{1,9})?)[ -]?(?:(ms|milliseconds?)|(s|secs?|seconds?)|(m|mins?|minutes?)"
    r"|(h|hrs?|hours?))(?![a-z])"
)
_UNIT_SECONDS: Final = (0.001, 1.0, 60.0, 3600.0)

# Codes are compared without case, signs and a final "error" or "exception". A number has the name of its vendor before
# it, because the same number means different things: 1300 is a filter's at Zhipu and a rate limit at Mistral.
_OVERFLOW_CODES: Final = frozenset(
    {"contextlengthexceeded", "exceedcontextsize", "requesttoolarge", "maxtokensexceeded", "contextwindowexceeded"}
    | {"modelmaxprompttokensexceeded", "prompttoolong", "tokenslimitreached", "zhipu1261", "minimax1039"}
)
_PAYMENT_CODES: Final = frozenset(
    {"insufficientquota", "billing", "billingnotactive", "billinghardlimitreached", "exceededcurrentquota"}
    | {"insufficientuserquota", "insufficientcredits", "insufficientbalance", "arrearage", "paymentrequired"}
    | {"creditsrequired", "zhipu1113", "minimax1008"}
)
_FILTER_CODES: Final = frozenset(
    {"contentfilter", "contentpolicyviolation", "responsibleaipolicyviolation", "invalidprompt", "biopolicy"}
    | {"misalignmentpolicyviolation", "imagecontentpolicyviolation", "prohibitedcontent", "datainspectionfailed"}
    | {
        "safety",
        "moderation",
        "guardrailintervened",
        "censorshipblocked",
        "contentriskblocked",
        "contentsensitive",
        "zhipu1300",
        "zhipu1301",
        "minimax1026",
        "minimax1027",
    }
)
_MODEL_CODES: Final = frozenset(
    {"modelnotfound", "deploymentnotfound", "invalidmodel", "modelnotavailable", "modelnotexist", "zhipu1211"}
)
_QUOTA_CODES: Final = frozenset({"usagelimitreached", "zhipu1304", "zhipu1308", "zhipu1309", "minimax2056"})
_CODE_STATUS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("authentication", "invalidapikey", "invalidauthentication", "unauthenticated"), 401),
    **dict.fromkeys(("unauthorized", "incorrectapikey", "apikeyinvalid", "expiredtoken", "unrecognizedclient"), 401),
    **dict.fromkeys(
        ("zhipu1000", "zhipu1001", "zhipu1002", "zhipu1003", "zhipu1004", "minimax1004", "minimax2049"), 401
    ),
    **dict.fromkeys(("permission", "permissiondenied", "accessdenied", "forbidden", "zhipu1220"), 403),
    **dict.fromkeys(("notfound", "resourcenotfound"), 404),
    **dict.fromkeys(("invalidrequest", "badrequest", "invalidargument", "invalidparameter", "validation"), 400),
    **dict.fromkeys(("failedprecondition", "outofrange", "unimplemented", "dataresidencymismatch"), 400),
    **dict.fromkeys(("unprocessableentity", "requestvalidation", "unsupportedparameter", "unsupportedvalue"), 422),
    **dict.fromkeys(
        ("zhipu1210", "zhipu1212", "zhipu1213", "zhipu1214", "minimax2013", "missingparameter", "missing"), 400
    ),
    **dict.fromkeys(("ratelimit", "ratelimitexceeded", "ratelimited", "ratelimitreached", "toomanyrequests"), 429),
    **dict.fromkeys(
        ("tokens", "requests", "resourceexhausted", "throttling", "zhipu1302", "zhipu1303", "zhipu1305"), 429
    ),
    **dict.fromkeys(("throttlingratequota", "throttlingallocationquota", "limitrequests"), 429),
    **dict.fromkeys(("minimax1002", "minimax1041", *_QUOTA_CODES), 429),
    **dict.fromkeys(("overloaded", "engineoverloaded", "modeloverloaded", "serviceunavailable", "unavailable"), 503),
    **dict.fromkeys(("modelnotready", "capacityexceeded", "unreachablebackend"), 503),
    **dict.fromkeys(("api", "server", "internal", "internalserver", "unknown", "modelstream"), 500),
    **dict.fromkeys(("timeout", "modeltimeout", "deadlineexceeded", "requesttimeout"), 504),
}
_CAUSES: Final = _OVERFLOW_CODES | _PAYMENT_CODES | _FILTER_CODES | _MODEL_CODES | _QUOTA_CODES
# Zhipu's numbers that it sends with status 429: an empty account, and limits.
_ZHIPU_429: Final = frozenset({"1113", "1302", "1303", "1304", "1305", "1308", "1309"})
# Statuses that say more than the 400 or the 5xx around them. 424 is Bedrock's and TGI's for a failure of the model, 498
# Groq's for exhausted capacity, 499 Gemini's for a cancelled operation.
_PRECISE_STATUS: Final = frozenset({401, 402, 403, 404, 408, 413, 429})
_RETRY_STATUS: Final = frozenset({408, 409, 424, 425, 498, 499})
_FINAL_SERVER_STATUS: Final = frozenset({501, 505})

# "maximum context length is 8192 tokens ... resulted in 9000 tokens",
# "prompt is too long: 210000 tokens > 200000 maximum"
_LIMIT_THEN_TOKENS: Final = re.compile(r"(?i)(?:length|window|limit|size)\D{0,40}?(\d{3,9})(?:\D+?)(\d{3,9})")
_TOKENS_THEN_LIMIT: Final = re.compile(r"(\d{3,9})\s*(?:tokens)?\s*>\s*(\d{3,9})")


@dataclass(slots=True)
class _Report:
    """What a report says, from the outermost document inwards."""

    texts: list[str] = field(default_factory=list)
    codes: set[str] = field(default_factory=set)
    numbers: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    retry_after: float | None = None

    @property
    def text(self) -> str:
        return ": ".join(text.rstrip(" .:") if text != self.texts[-1] else text for text in self.texts)

    def add_text(self, text: str) -> None:
        text = quote(text) if len(self.texts) < _MAX_TEXTS else ""
        if text and not any(text in known for known in self.texts):
            self.texts.append(text)
            wait = _wait_in_text(text)
            self.retry_after = wait if self.retry_after is None else self.retry_after

    def add_code(self, code: object, prefix: str = "") -> None:
        if isinstance(code, bool) or not isinstance(code, int | str):
            return
        plain = re.sub(r"[^a-z0-9]", "", str(code)[:_MAX_CODE_CHARACTERS].lower())
        if not prefix and len(plain) == 4 and plain.isdigit():
            self.numbers.append(plain)
            return
        plain = prefix + (re.sub(r"(?:error|exception)$", "", plain) or plain)
        if plain.isdigit() and len(plain) == 3 and 400 <= int(plain) <= 599:
            self.statuses.append(int(plain))
        elif plain in _CODE_STATUS:
            self.statuses.append(_CODE_STATUS[plain])
        self.codes.add(plain)

    def add_numbers(self, status: int | None) -> None:
        """Reads the bare numbers as Zhipu's, unless a word or the status says something that Zhipu never says with it.

        Zhipu sends no words beside its numbers. Other vendors number their errors alike and do.
        """
        if any(code in _CAUSES or _CODE_STATUS.get(code, 400) != 400 for code in self.codes):
            return
        for number in self.numbers if status is None or status < 500 else ():
            if number in _ZHIPU_429 or 429 not in (status, *self.statuses):
                self.add_code(number, "zhipu")


def error_from_response(
    provider: str, status: int | None, body: object, headers: Mapping[str, str] | None = None
) -> ProviderError:
    """Returns the error for a failed answer.

    Args:
        provider: its name, as in a model's handle.
        status: the HTTP status; None for an error inside a stream or a body that started well.
        body: the decoded body, or its text.
        headers: the headers of the answer, for Retry-After.
    """
    report = _Report()
    try:
        _read(body, report, 0)
    except RecursionError:
        report.texts = ["an answer that is nested too deeply"]
    if not report.texts and isinstance(body, Mapping | list) and body:
        report.add_text(json.dumps(body, ensure_ascii=False, default=str))
    report.add_numbers(status)
    message = f"{provider} answered {status}" if status is not None else f"{provider} broke off with an error"
    message += f": {quote(report.text)}" if report.texts else "."
    if status is not None and 300 <= status < 400:
        message = f"{provider} answered {status}. Redirects are not followed. Configure the final URL as base_url."
    wait = retry_after_seconds(headers or {})
    kind = _kind(_precise_status(status, report.statuses), report)
    wait = (report.retry_after if wait is None else wait) if kind.is_retryable else None
    error = kind(message, provider=provider, status=status, retry_after=wait)
    if isinstance(error, ContextOverflow):
        error.metadata.update(_token_counts(report.text))
    return error


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Returns the wait that the provider requests: Retry-After-Ms, or Retry-After in seconds or as a date."""
    for header, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[header]) / divisor
        except (KeyError, ValueError):
            continue
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    return max(0.0, (moment - datetime.now(UTC)).total_seconds()) if moment.tzinfo else None


def quote(text: str) -> str:
    """Returns a provider's text for logs and clients: one short line, without keys and markup."""
    if _MARKUP.search(text):
        return "(a page of HTML)"
    line = " ".join(_KEYS.sub("[key]", text[:20_000]).split())
    return line if len(line) <= _MAX_QUOTE_CHARACTERS else line[: _MAX_QUOTE_CHARACTERS - 1] + "…"


def _read(value: object, report: _Report, depth: int) -> None:
    """Adds to a report what a document says. A text may be a document as well, or end with one."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        opening = _DOCUMENT.search(value)
        inner = None if opening is None else _decoded(value[opening.start() :])
        report.add_text(value if inner is None or opening is None else value[: opening.start()])
        value = inner
    if isinstance(value, list):
        for item in value[:5]:
            _read(item, report, depth + 1)
    elif isinstance(value, Mapping):
        _read_object(value, report, depth)


def _read_object(value: Mapping[str, Any], report: _Report, depth: int) -> None:
    for key in (*_CODE_KEYS, *_CODE_KEYS_2):
        report.add_code(value.get(key))
    if isinstance(base := value.get("base_resp"), Mapping):
        report.add_code(base.get("status_code"), "minimax")
    if isinstance(place := value.get("loc"), list):
        report.add_text(f"{'.'.join(map(str, place))}: {value.get('msg')}")
    for key in (*_TEXT_KEYS, *_TEXT_KEYS_2):
        if value.get(key):
            _read(value[key], report, depth + 1)
    for key in ("retry_after", "retry_after_seconds", "retryDelay"):
        if report.retry_after is None and (match := re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)s?", str(value.get(key)))):
            report.retry_after = float(match[1])
    for key in (*_NESTED_KEYS, *_NESTED_KEYS_2):
        if value.get(key):
            _read(value[key], report, depth + 1)


def _decoded(text: str) -> object | None:
    """Returns the object or list at the beginning of a text, which other text may follow; None if there is none."""
    try:
        found = json.JSONDecoder(strict=False).raw_decode(text)[0]
    except ValueError:
        return None
    return found if isinstance(found, dict | list) and found else None


def _wait_in_text(text: str) -> float | None:
    """Returns the wait that a text names: "try again in 7m12.5s", "after 2 seconds"; None if it names none."""
    for opening in _WAIT_TEXT.finditer(text):
        seconds, end = 0.0, opening.end()
        while part := _WAIT_PART.match(text, end):
            unit = next(unit for unit, name in zip(_UNIT_SECONDS, part.groups()[1:], strict=True) if name)
            seconds, end = seconds + float(part[1]) * unit, part.end()
        if end > opening.end():
            return seconds
    return None


def _precise_status(status: int | None, reported: list[int]) -> int | None:
    """Returns the status that says most: the outermost, unless it is general and an inner one is precise."""
    statuses = [*([] if status is None else [status]), *reported]
    if not statuses:
        return None
    first = statuses[0]
    if first == 400 or first >= 500:
        inner = (one for one in statuses[1:] if one in _PRECISE_STATUS or (first >= 500 and one < 500))
        return next(inner, first)
    return first


def _kind(status: int | None, report: _Report) -> type[ProviderError]:
    """Returns the class of an error. Codes and texts that name the cause come before the status."""
    return next(filter(None, _kinds(status, report)))


def _kinds(status: int | None, report: _Report) -> Iterator[type[ProviderError] | None]:
    codes, text = report.codes, report.text
    is_refusal = status is None or status in (400, 413, 422) or status >= 500
    is_unreadable = codes & _UNREADABLE_CODES or _UNREADABLE_TEXT.search(text)
    if is_refusal and is_unreadable and (status is None or status < 500):
        yield ProviderBadAnswer
    is_long = bool(codes & _OVERFLOW_CODES or _OVERFLOW_TEXT.search(text) or _LONG_STRING.search(text))
    is_long = is_long and not _OUTPUT_TEXT.search(text)
    if status == 413 or (is_refusal and is_long) or _TOO_LARGE_FOR_A_MINUTE.search(text):
        yield ContextOverflow
    # Google also says this of the tokens per minute.
    is_minute_quota = status == 429 and "resourceexhausted" in codes
    if status == 402 or codes & _PAYMENT_CODES or (_PAYMENT_TEXT.search(text) and not is_minute_quota):
        yield ProviderPaymentRequired
    is_filter = codes & _FILTER_CODES or any("sensitivecontent" in code for code in codes)
    if status == 451 or is_filter or _FILTER_TEXT.search(text):
        yield ProviderContentFilter
    if (is_refusal or status == 403) and _USAGE_LIMIT.search(text):
        yield ProviderQuotaExhausted
    if status in (401, 403) or (status in (None, 400) and _AUTH_TEXT.search(text)):
        yield ProviderAuth
    if codes & _MODEL_CODES or (status in (None, 400, 404) and _MODEL_TEXT.search(text)):
        yield ProviderModelUnknown
    if status == 429:
        is_long_quota = codes & _QUOTA_CODES or any("perday" in code for code in codes)
        if is_long_quota or (report.retry_after is None and (_LONG_QUOTA.search(text) or _USAGE_LIMIT.search(text))):
            yield ProviderQuotaExhausted
        yield ProviderRateLimited
    if any(map(_REFUSED_IMAGE.search, codes)):
        yield ProviderRefused
    if status is None or status in _RETRY_STATUS or (status >= 500 and status not in _FINAL_SERVER_STATUS):
        yield ProviderUnavailable
    yield ProviderRefused


def _token_counts(text: str) -> dict[str, str]:
    if match := _TOKENS_THEN_LIMIT.search(text):
        return {"tokens": match[1], "limit": match[2]}
    if match := _LIMIT_THEN_TOKENS.search(text):
        return {"limit": match[1], "tokens": match[2]}
    return {}
