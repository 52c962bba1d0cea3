"""OpenAI's Responses API, and every server that implements it."""

from mnemesh_orchestrator.llm.openai_responses.client import OpenAiResponsesClient
from mnemesh_orchestrator.llm.openai_responses.render import render_body

__all__ = ["OpenAiResponsesClient", "render_body"]
