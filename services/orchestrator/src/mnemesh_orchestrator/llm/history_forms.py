"""The forms in which the servers of models accept a history, learned from their refusals.

No history that is stored may make every later turn fail. Servers differ in the sequences of roles that their templates
render, and in the private parts that they require, accept or can still verify. So a request that is refused with words
about either is sent again in a plainer form, and the form that was accepted is used from then on.
"""

import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

import structlog
from mnemesh_types.messages import (
    Message,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    Role,
    SummarizedReasoningPart,
    TextPart,
)

from mnemesh_orchestrator.llm.attempts import MAX_OTHER_FORMS, AttemptBudget
from mnemesh_orchestrator.llm.carried import carried_names
from mnemesh_orchestrator.llm.dialects import Api
from mnemesh_orchestrator.llm.errors import ProviderError, ProviderRefused, ProviderUnavailable
from mnemesh_orchestrator.llm.port import LlmEvent, LlmRequest

_log = structlog.get_logger("mnemesh.llm")

_MAX_MODELS: Final = 1_000
_MAX_REFUSED: Final = 100_000

_ROLES: Final = re.compile(
    r"(?i)\broles?\b|alternat(?:e|ing|ion)\b|message_order|consecutive (?:user|assistant|message)|no user query found"
    r"|last message|(?:message|conversation|chat)s?\b.{0,60}\b(?:start|begin|end)s? with|jinja|chat template"
    r"|tool_calls?.{0,60}(?:must be followed|did not have response)|preceding.{0,40}tool_calls"
)
_SYSTEM: Final = re.compile(
    r"(?i)system (?:role|message|prompt|instruction)s?\b.{0,60}\b(?:not |un)(?:support|allow|permit|enabled|available)"
    r"|not (?:support|allow)\w*.{0,40}\bsystem\b|developer instruction is not enabled"
)
_PRIVATE: Final = re.compile(r"(?i)reasoning|thinking|thought|signature|encrypted|redacted")
_DEMAND: Final = re.compile(
    r"(?i)must be (?:passed|provided|included|sent|returned|set|present|non)|\bmissing\b|\brequired\b"
    r"|must (?:includ|contain|have)"
    r"|cannot be (?:empty|null|blank)|\brequires\b|should be (?:passed|provided|included|present)|passed back"
)
_UNKNOWN_FIELD: Final = re.compile(
    r"(?i)extra|unsupported|not supported|unknown|unrecogni[sz]ed|not permitted|not allowed"
    r"|additional propert|unexpected"
)
_WORDS: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class HistoryForm:
    """A form of the history that a model receives.

    `strict_roles`: user and assistant alternate, and a message has one call. `has_system` is false if the system
    message is a part of the first user message. `calls_as_text`: calls and returns are text. `reasoning` is the text
    of `reasoning_content`, or the thinking, of messages that have none; None adds no such field. `signs_calls`: calls
    without a signature get the value that Gemini documents for them. `has_carried` is false if private parts are left
    out. `left_out` are the names of fields that the server does not know. `refused` are the ids of messages whose
    private parts it refused.
    """

    strict_roles: bool = False
    has_system: bool = True
    calls_as_text: bool = False
    reasoning: str | None = None
    signs_calls: bool = False
    has_carried: bool = True
    left_out: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()

    def returns_parts(self, message: Message, request: LlmRequest) -> bool:
        """Returns whether the model that is called wrote a message and gets its private parts back."""
        is_own = message.model == request.model.handle
        return is_own and self.has_carried and message.id not in self.refused


PLAIN: Final = HistoryForm()


class HistoryForms:
    """The forms that the models of one provider accept. They are learned again after a restart."""

    def __init__(self) -> None:
        self._forms: OrderedDict[str, HistoryForm] = OrderedDict()
        self._refused: OrderedDict[str, None] = OrderedDict()

    def form(self, request: LlmRequest) -> HistoryForm:
        """Returns the form in which a request is sent first."""
        form = self._forms.get(request.model.provider_model, PLAIN)
        if not self._refused:
            return form
        refused = frozenset(message.id for message in request.messages if message.id in self._refused)
        return replace(form, refused=refused) if refused else form

    async def stream(
        self,
        request: LlmRequest,
        render: Callable[[HistoryForm], bytes],
        send: Callable[[bytes], AsyncIterator[LlmEvent]],
        budget: AttemptBudget,
    ) -> AsyncIterator[LlmEvent]:
        """Yields the events of an answer. A request that is refused for its history is sent again in other forms.

        Args:
            request: the request.
            render: returns its body in a form.
            send: sends a body once.
            budget: the requests in other forms that the step may still send.

        Raises:
            ProviderError: the call failed, or the history is refused in every form.
        """
        form = self.form(request)
        body, refusals = render(form), list[ProviderError]()
        while True:
            has_begun = False
            try:
                async with aclosing(send(body)) as events:  # type: ignore[type-var]
                    async for event in events:
                        if not has_begun and refusals:
                            self._keep(request, form, refusals[0])
                        has_begun = True
                        yield event
                return
            except ProviderError as error:
                refusals.append(error)
                if has_begun or budget.forms >= MAX_OTHER_FORMS:
                    raise
                following = _following(form, body, request, error, render)
                if following is None:
                    # After a guess that failed, the first refusal says more.
                    raise (error if _says_what(refusals[0]) else refusals[0]) from None
                form, body = following
                budget.forms += 1

    def _keep(self, request: LlmRequest, form: HistoryForm, refusal: ProviderError) -> None:
        model = request.model.provider_model
        _log.warning("history_form_changed", model=request.model.handle, refusal=refusal.message)
        self._forms[model] = replace(form, refused=frozenset())
        self._forms.move_to_end(model)
        self._refused |= dict.fromkeys(form.refused)
        while len(self._forms) > _MAX_MODELS:
            self._forms.popitem(last=False)
        while len(self._refused) > _MAX_REFUSED:
            self._refused.popitem(last=False)


def _says_what(error: ProviderError) -> bool:
    return any(words.search(error.message) for words in (_ROLES, _SYSTEM, _PRIVATE))


def _following(
    form: HistoryForm, body: bytes, request: LlmRequest, error: ProviderError, render: Callable[[HistoryForm], bytes]
) -> tuple[HistoryForm, bytes] | None:
    """Returns the next form after a refusal, with its body; None if no other form changes the request."""
    for candidate in _candidates(form, request, error):
        if candidate != form and (other := render(candidate)) != body:
            return candidate, other
    return None


def _candidates(form: HistoryForm, request: LlmRequest, error: ProviderError) -> list[HistoryForm]:
    text = error.message
    # Some servers report the exception of a template as an error of their own.
    is_exception = isinstance(error, ProviderUnavailable) and error.status in (None, 500)
    if type(error) is not ProviderRefused and not is_exception:
        return []
    if _SYSTEM.search(text):
        return [replace(form, has_system=False), *_role_forms(form)]
    own = [message for message in request.messages if form.returns_parts(message, request) and _has_private(message)]
    names = {name for message in own for name in carried_names(message)} & set(_WORDS.findall(text))
    if _PRIVATE.search(text) or names:
        is_demand = "passed back" in text if request.model.api == Api.MESSAGES else _DEMAND.search(text) is not None
        return [*_private_forms(form, own, names, text, is_demand), *(_role_forms(form) if _ROLES.search(text) else [])]
    if _ROLES.search(text):
        return _role_forms(form)
    if type(error) is not ProviderRefused or error.status not in (None, 400, 422):
        return []
    # The server does not say what it refuses.
    return [replace(form, strict_roles=True, refused=form.refused | {message.id for message in own})]


def _role_forms(form: HistoryForm) -> list[HistoryForm]:
    strict = replace(form, strict_roles=True)
    without_system = replace(strict, has_system=False)
    return [strict, without_system, replace(without_system, calls_as_text=True)]


def _private_forms(
    form: HistoryForm, own: list[Message], names: set[str], text: str, is_demand: bool
) -> list[HistoryForm]:
    """Returns the forms after a refusal that names private parts, the one that keeps most of them first."""
    forms = []
    is_unknown_field = _UNKNOWN_FIELD.search(text) is not None
    if is_demand and not is_unknown_field:
        if "signature" in text:
            forms.append(replace(form, signs_calls=True))
        # A server that requires the field may refuse an empty one.
        demanded = "" if form.reasoning is None else " "
        forms.append(replace(form, reasoning=demanded, left_out=frozenset(), has_carried=True))
    if names and is_unknown_field:
        forms.append(replace(form, left_out=form.left_out | names))
    if is_unknown_field and form.reasoning is not None:
        forms.append(replace(form, reasoning=None))
    # Once the older parts of this window were refused and the newer ones are refused as well, none is accepted.
    if is_unknown_field or form.refused:
        forms.append(replace(form, has_carried=False))
    forms.append(replace(form, refused=form.refused | {message.id for message in own}))
    return forms


def _has_private(message: Message) -> bool:
    """Returns whether a message has parts that only its model may receive."""
    if message.role is not Role.ASSISTANT:
        return False
    return message.carried is not None or any(_is_private(part) for part in message.content)


def _is_private(part: object) -> bool:
    match part:
        case ReasoningPart(is_native=True) | RedactedReasoningPart() | SummarizedReasoningPart():
            return True
        case OmittedReasoningPart(signature) | TextPart(signature=signature):
            return signature is not None
    return False
