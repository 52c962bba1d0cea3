"""Calls OpenAI, or a server with its Responses API."""

from typing import Any

from mnemesh_orchestrator.llm.assembly import StreamedAnswer
from mnemesh_orchestrator.llm.history_forms import HistoryForm
from mnemesh_orchestrator.llm.openai_client import OpenAiClient
from mnemesh_orchestrator.llm.openai_responses.answer import ResponsesAnswer
from mnemesh_orchestrator.llm.openai_responses.render import render_body
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.llm.render_cache import RenderCache


class OpenAiResponsesClient(OpenAiClient):
    """A client of the Responses API."""

    api_path = "/responses"

    def _body(self, request: LlmRequest, cache: RenderCache, form: HistoryForm) -> dict[str, Any]:
        return render_body(request, cache, form)

    def _answer(self, provider: str) -> StreamedAnswer:
        return ResponsesAnswer(provider)
