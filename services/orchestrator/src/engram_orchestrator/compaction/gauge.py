"""Measures requests: estimates by message, corrected by what the provider has reported of this agent's requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from engram_orchestrator.compaction.tokens import Corrections, TokenLedger, records, schemas_tokens, tokenizer
from engram_orchestrator.llm.port import LlmRequest
from engram_orchestrator.model.messages import Message
from engram_orchestrator.model.models import ToolSchema


@dataclass(frozen=True, slots=True)
class Measured:
    """Corrected tokens of a request: of each message, of the tools, and of all. `estimate` is all, uncorrected."""

    messages: Sequence[int]
    tools: int
    estimate: int

    @property
    def total(self) -> int:
        """Of the whole request."""
        return self.tools + sum(self.messages)


class Gauge:
    """Knows what requests take. Asks nobody: what it learns comes with the answers. Models go by their handles."""

    def __init__(self) -> None:
        self._ledger = TokenLedger()
        self._corrections = Corrections()

    def request(self, agent_id: str, request: LlmRequest) -> Measured:
        """A request as it would be sent."""
        by = tokenizer(request.model.handle)
        messages = self._ledger.measure(request.messages, by, request.tool_return_char_limit)
        tools = schemas_tokens(request.tools, by)
        estimate = sum(messages) + tools
        factor = self._factor(agent_id, request.model.handle)
        if factor == 1:
            return Measured(messages, tools, estimate)
        return Measured([int(tokens * factor) for tokens in messages], int(tools * factor), estimate)

    def messages(
        self, agent_id: str, model: str, messages: Sequence[Message], return_limit: int | None = None
    ) -> list[int]:
        """Each message, with its returns cut at a limit."""
        by, factor = tokenizer(model), self._factor(agent_id, model)
        kept = records(messages)
        return [0 if message.id in kept else int(by.message(message, return_limit) * factor) for message in messages]

    def schemas(self, agent_id: str, model: str, schemas: Sequence[ToolSchema]) -> int:
        """What offering tools takes."""
        return int(schemas_tokens(schemas, tokenizer(model)) * self._factor(agent_id, model))

    def text(self, agent_id: str, model: str, text: str) -> int:
        """A text by itself."""
        return int(tokenizer(model).text(text) * self._factor(agent_id, model))

    def corrected(self, agent_id: str, model: str, estimate: int) -> int:
        """What an uncorrected estimate stands for by now."""
        return int(estimate * self._factor(agent_id, model))

    def learn(self, agent_id: str, model: str, estimate: int, reported: int | None) -> None:
        """Takes in what the provider counted of a request whose uncorrected estimate is known."""
        if reported:
            self._corrections.learn(agent_id, model, estimate, reported)

    def _factor(self, agent_id: str, model: str) -> float:
        return self._corrections.factor(agent_id, model)
