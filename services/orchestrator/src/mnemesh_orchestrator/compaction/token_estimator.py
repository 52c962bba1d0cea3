"""Measures requests: estimates by message, corrected by the providers' counts of an agent's requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from mnemesh_types.messages import Message

from mnemesh_orchestrator.compaction.tokens import Corrections, TokenLedger, records, schemas_tokens, tokenizer
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.agents import Agent, Correction
from mnemesh_orchestrator.model.models import ToolSchema


@dataclass(frozen=True, slots=True)
class Measured:
    """Corrected tokens of a request: of each message, of the tools, and in total.

    `estimate` is the uncorrected total.
    """

    messages: Sequence[int]
    tools: int
    estimate: int

    @property
    def total(self) -> int:
        """The tokens of the whole request."""
        return self.tools + sum(self.messages)


class TokenEstimator:
    """Estimates the size of requests. It calls no service: it learns from answers. Models are identified by handle."""

    def __init__(self) -> None:
        self._ledger = TokenLedger()
        self._corrections = Corrections()

    def request(self, agent: Agent, request: LlmRequest) -> Measured:
        """Measures a request as it would be sent."""
        by = tokenizer(request.model.handle)
        messages = self._ledger.measure(request.messages, by, request.tool_return_char_limit)
        tools = schemas_tokens(request.tools, by)
        estimate = sum(messages) + tools
        factor = self._factor(agent, request.model.handle)
        if factor == 1:
            return Measured(messages, tools, estimate)
        return Measured([int(tokens * factor) for tokens in messages], int(tools * factor), estimate)

    def messages(
        self, agent: Agent, model: str, messages: Sequence[Message], return_limit: int | None = None
    ) -> list[int]:
        """Measures each message, with its returns cut at a limit."""
        by, factor = tokenizer(model), self._factor(agent, model)
        kept = records(messages)
        return [0 if message.id in kept else int(by.message(message, return_limit) * factor) for message in messages]

    def schemas(self, agent: Agent, model: str, schemas: Sequence[ToolSchema]) -> int:
        """Returns the tokens of tool schemas."""
        return int(schemas_tokens(schemas, tokenizer(model)) * self._factor(agent, model))

    def text(self, agent: Agent, model: str, text: str) -> int:
        """Returns the tokens of a text."""
        return int(tokenizer(model).text(text) * self._factor(agent, model))

    def corrected(self, agent: Agent, model: str, estimate: int) -> int:
        """Returns the corrected value of an uncorrected estimate."""
        return int(estimate * self._factor(agent, model))

    def correction(self, agent: Agent, model: str) -> Correction:
        """Returns the correction of an agent's requests to a model, from everything that is known."""
        return self._corrections.of(agent, model)

    def learn(self, agent: Agent, model: str, estimate: int, reported: int | None) -> Correction | None:
        """Learns from the provider's count of a request with a known uncorrected estimate. Returns the new correction.

        Returns None if nothing can be learned.
        """
        return self._corrections.learn(agent, model, estimate, reported) if reported else None

    @property
    def mean_error(self) -> float:
        """The mean error of recent expectations, as a share of the counted tokens."""
        return self._corrections.mean_error

    def _factor(self, agent: Agent, model: str) -> float:
        return self._corrections.of(agent, model).factor
