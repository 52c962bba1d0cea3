"""Fake providers: real HTTP servers on loopback that speak a provider's wire protocol and answer by a script.

`engram_testkit.fakes.openai.FakeOpenAI`, `engram_testkit.fakes.openai_responses.FakeResponses`,
`engram_testkit.fakes.anthropic.FakeAnthropic`; `python -m
engram_testkit.fakes.openai` runs a lean one for benchmarks.
"""
