"""A package with valid and invalid processors of every kind."""

SOURCE = '''
"""Processors of a shop."""

import asyncio

from mnemesh_orchestrator.processors import InputFacts, Refused, ToolResultFacts

SEEN = []


class Redact:
    order = 100

    async def process(self, text: str, facts: InputFacts) -> str:
        SEEN.append(("redact", text, facts))
        return text.replace("4111", "[card]")


class Stamp:
    order = 800

    async def process(self, text: str, facts: InputFacts) -> str:
        SEEN.append(("stamp", text, facts))
        return f"{text} (shop {facts.organization_id[-1]})"


class Gate:
    order = 50

    async def process(self, text: str, facts: InputFacts) -> str:
        if "forbidden" in text:
            raise Refused("Of this we do not speak.")
        return text


class Broken:
    order = 10

    async def process(self, text, facts):
        raise RuntimeError("a secret of the server")


class Slow:
    order = 10

    async def process(self, text, facts):
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if DONE.is_set():
                    raise


DONE = asyncio.Event()


class Empty:
    order = 10

    async def process(self, text, facts):
        return ""


class Shorten:
    order = 200

    async def process(self, text: str, facts: ToolResultFacts) -> str:
        SEEN.append(("shorten", text, facts))
        facts.arguments.clear()
        return text[:4]


class Shout:
    order = 300

    async def process(self, text: str, facts: ToolResultFacts) -> str:
        SEEN.append(("shout", text, facts))
        return text.upper()


class Late:
    order = 900

    async def process(self, text, facts):
        return text


class Unordered:
    async def process(self, text, facts):
        return text


class Blocking:
    order = 1

    def process(self, text, facts):
        return text


class Unmakeable:
    def __init__(self, needed):
        pass
'''
INPUTS = ("Redact", "Stamp", "Gate", "Broken", "Slow", "Empty", "Late", "Unordered", "Blocking", "Unmakeable")
RESULTS = ("Shorten", "Shout", "Broken", "Slow")
GROUPS = {"mnemesh.input_processors": (*INPUTS, "Gone"), "mnemesh.tool_result_processors": RESULTS}
