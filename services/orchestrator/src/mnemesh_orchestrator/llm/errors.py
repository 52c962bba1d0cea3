"""What can go wrong between mnemesh and a model.

ProviderError
├── ProviderAuth · ProviderPaymentRequired          the account
├── ProviderRefused                                 this request, as it is
│   ├── ProviderContentFilter                       its content
│   ├── ProviderModelUnknown                        the model that it names
│   └── ContextOverflow                             it is too long
├── ProviderRateLimited · ProviderUnavailable       asking again may help
├── ProviderTimeout
└── ProviderBadAnswer                               it answered, and nobody can read it

A message names the provider, the status and the provider's own short words; never a key, never a page of HTML.
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


class ProviderError(MnemeshError):
    """A call to a provider failed.

    `is_retryable` says that the same request may succeed a moment later, so an adapter asks again within its budget
    as long as nothing was streamed. `retry_after` is the provider's own figure in seconds, where it gave one.
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
        stated = {} if status is None else {"status": str(status)}
        hint = {} if retry_after is None else {"retry_after_seconds": f"{retry_after:g}"}
        super().__init__(message, provider=provider, **stated, **hint, **metadata)
        self.provider = provider
        self.status = status
        self.retry_after = retry_after

    def without(self, secrets: Collection[str]) -> Self:
        """This error, where its words or its cause quote a secret without it: some servers show the key they refuse."""
        for secret in secrets:
            if secret in self.message or any(secret in value for value in self.metadata.values()):
                self.message = self.message.replace(secret, "[key]")
                self.args = (self.message,)
                self.metadata = {name: value.replace(secret, "[key]") for name, value in self.metadata.items()}
        if secrets:
            self.__cause__, self.__suppress_context__ = None, True  # it holds the provider's whole answer
        return self


class ProviderAuth(ProviderError):
    """The provider does not accept the key, or the key may not use the model."""

    code = FailedPrecondition.code
    reason = "PROVIDER_AUTH"


class ProviderPaymentRequired(ProviderError):
    """The account behind the key has no credit left."""

    code = FailedPrecondition.code
    reason = "PROVIDER_PAYMENT_REQUIRED"


class ProviderRefused(ProviderError):
    """The provider refuses the request as it is; asking again changes nothing."""

    code = FailedPrecondition.code
    reason = "PROVIDER_REFUSED"


class ProviderContentFilter(ProviderRefused):
    """The provider's content filter refuses the request."""

    reason = "PROVIDER_CONTENT_FILTER"


class ProviderModelUnknown(ProviderRefused):
    """The provider has no model of that name, or not for this key."""

    code = NotFound.code
    reason = "MODEL_UNKNOWN"


class ContextOverflow(ProviderRefused):
    """The provider says that the request does not fit the model's window.

    Metadata `tokens` and `limit` are there where the provider named them.
    """

    reason = "CONTEXT_WINDOW_OVERFLOW"


class ProviderRateLimited(ProviderError):
    """Too many requests or tokens for now."""

    code = ResourceExhausted.code
    reason = "PROVIDER_RATE_LIMITED"
    is_retryable = True


class ProviderUnavailable(ProviderError):
    """Overloaded, failing, unreachable, or the stream was cut before its end."""

    reason = "PROVIDER_UNAVAILABLE"
    is_retryable = True


class ProviderTimeout(ProviderError):
    """The provider took longer than the configured time."""

    code = DeadlineExceeded.code
    reason = "PROVIDER_TIMEOUT"


class ProviderBadAnswer(ProviderError):
    """The answer is no JSON, no event stream, or of a shape that no one documents."""

    reason = "PROVIDER_BAD_ANSWER"


STAYS_AWAY: Final = (ProviderRateLimited, ProviderUnavailable, ProviderTimeout)
"""What another model may help against. A refused key, an empty account or a bad request is somebody's to mend."""


class ModelUnknown(NotFound):
    """No configured provider serves that handle."""

    reason = "MODEL_UNKNOWN"

    def __init__(self, message: str, /, *, model: str) -> None:
        super().__init__(message, model=model)


class ProviderOptionsInvalid(InvalidArgument):
    """`provider_options` is not the text of a JSON object."""

    def __init__(self, message: str) -> None:
        super().__init__(message, field="settings.provider_options")
