"""Fake providers: real HTTP servers on loopback that speak a provider's wire protocol and answer by a script.

`mnemesh_testkit.fakes.openai.FakeOpenAI`, `mnemesh_testkit.fakes.openai.FakeResponses`,
`mnemesh_testkit.fakes.anthropic.FakeAnthropic`; `python -m
mnemesh_testkit.fakes.openai` runs a lean one for benchmarks.
"""
