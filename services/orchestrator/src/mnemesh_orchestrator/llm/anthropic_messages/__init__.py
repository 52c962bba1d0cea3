"""Anthropic's messages API."""

from mnemesh_orchestrator.llm.anthropic_messages.client import AnthropicMessagesClient
from mnemesh_orchestrator.llm.anthropic_messages.render import render_body

__all__ = ["AnthropicMessagesClient", "render_body"]
