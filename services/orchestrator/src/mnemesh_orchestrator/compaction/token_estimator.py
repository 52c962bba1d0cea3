"""Measures requests: estimates by message, corrected by the providers' counts of an agent's requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from mnemesh_types.messages import Message

from mnemesh_orchestrator.compaction.tokens import (
    Corrections,
    TokenLedger,
    schemas_tokens,
    tokenizer_for,
    unsent_message_ids,
)
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
    """Estimates the size of requests without calls. Answers correct the estimates. Models are identified by handle."""

    def __init__(self) -> None:
        self._ledger = TokenLedger()
        self._corrections = Corrections()

    def request(self, agent: Agent, request: LlmRequest) -> Measured:
        """Measures a request as it would be sent."""
        tokenizer = tokenizer_for(request.model.handle)
        messages = self._ledger.measure(request.messages, tokenizer, request.tool_return_char_limit)
        tools = schemas_tokens(request.tools, tokenizer)
        estimate = sum(messages) + tools
        factor = self._factor(agent, request.model.handle)
        if factor == 1:
            return Measured(messages, tools, estimate)
        return Measured([int(tokens * factor) for tokens in messages], int(tools * factor), estimate)

    def messages(
        self, agent: Agent, model: str, messages: Sequence[Message], return_limit: int | None = None
    ) -> list[int]:
        """Measures each message, with its returns cut at a limit."""
        tokenizer, factor = tokenizer_for(model), self._factor(agent, model)
        unsent = unsent_message_ids(messages)
        return [
            0 if message.id in unsent else int(tokenizer.message(message, return_limit) * factor)
            for message in messages
        ]

    def schemas(self, agent: Agent, model: str, schemas: Sequence[ToolSchema]) -> int:
        """Returns the tokens of tool schemas."""
        return int(schemas_tokens(schemas, tokenizer_for(model)) * self._factor(agent, model))

    def text(self, agent: Agent, model: str, text: str) -> int:
        """Returns the tokens of a text."""
        return int(tokenizer_for(model).text(text) * self._factor(agent, model))

    def corrected(self, agent: Agent, model: str, estimate: int) -> int:
        """Returns the corrected value of an uncorrected estimate."""
        return int(estimate * self._factor(agent, model))

    def correction(self, agent: Agent, model: str) -> Correction:
        """Returns the correction of an agent's requests to a model, from everything that is known."""
        return self._corrections.of(agent, model)

    def update_correction(self, agent: Agent, model: str, estimate: int, reported: int | None) -> Correction | None:
        """Returns the correction after the provider counted a request with a known uncorrected estimate.

        Returns None if the correction stays.
        """
        return self._corrections.update(agent, model, estimate, reported) if reported else None

    @property
    def mean_error(self) -> float:
        """The mean error of recent expectations, as a share of the counted tokens."""
        return self._corrections.mean_error

    def _factor(self, agent: Agent, model: str) -> float:
        return self._corrections.of(agent, model).factor
