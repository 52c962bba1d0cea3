"""Errors between mnemesh and a model.

ProviderError
├── ProviderAuth · ProviderPaymentRequired          the account
├── ProviderRefused                                 the request
│   ├── ProviderContentFilter                       its content
│   ├── ProviderModelUnknown                        its model
│   └── ContextOverflow                             its length
├── ProviderRateLimited · ProviderUnavailable       a retry may succeed
│   └── ProviderQuotaExhausted · ProviderUnreachable  a retry fails as well
├── ProviderTimeout
└── ProviderBadAnswer                               the answer cannot be read

A message names the provider, the status and the provider's own short text. It never contains a key or an HTML page.
"""

from collections.abc import Collection
from typing import ClassVar, Final, Self

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
