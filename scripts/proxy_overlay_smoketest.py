"""Exercises the gateway's overlay of system messages with four calls, and prints one line for each.

The calls are: a system message with a question, a question alone, a changed system message, and a stream. Variables:

- PROXY_BASE_URL: the gateway, with or without /v1; by default http://127.0.0.1:8283/v1
- PROXY_MODEL: the agent, by default the first one that the gateway lists
- PROXY_SESSION_ID: the session, by default a new one
- PROXY_API_KEY: the token, if the mesh has authentication
"""

import os
import sys
import uuid
from typing import Any

import openai


def main() -> int:
    """Runs the calls; returns 0 if all of them were answered."""
    base_url = os.environ.get("PROXY_BASE_URL", "http://127.0.0.1:8283/v1").rstrip("/").removesuffix("/v1") + "/v1"
    session = os.environ.get("PROXY_SESSION_ID") or f"smoketest-{uuid.uuid4()}"
    with openai.OpenAI(
        base_url=base_url,
        api_key=os.environ.get("PROXY_API_KEY", "any"),
        default_headers={"X-Session-Id": session},
    ) as client:
        try:
            model = os.environ.get("PROXY_MODEL") or next(iter(client.models.list())).id
            print(f"gateway {base_url}, agent {model}, session {session}")
            return run_all(client, model)
        except StopIteration:
            print("FAIL  there are no agents; create one with `mnemesh agents create`")
        except openai.OpenAIError as error:
            print(f"FAIL  {error}")
    return 1


def run_all(client: openai.OpenAI, model: str) -> int:
    """Runs the four calls; returns 0 if each had an answer."""
    polite: Any = {"role": "system", "content": "You are polite. Answer in one sentence."}
    brief: Any = {"role": "system", "content": "You are brief. Answer in three words."}
    steps: list[tuple[str, list[Any]]] = [
        ("system and user", [polite, {"role": "user", "content": "My name is Ada."}]),
        ("user only", [{"role": "user", "content": "What is my name?"}]),
        ("changed system", [brief, {"role": "user", "content": "What do you know about me?"}]),
    ]
    failures = 0
    for name, messages in steps:
        answer = client.chat.completions.create(model=model, messages=messages)
        failures += report(name, answer.choices[0].message.content, answer.choices[0].finish_reason)
    stream = client.chat.completions.create(
        model=model, messages=[brief, {"role": "user", "content": "Say goodbye."}], stream=True
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    failures += report(f"stream, {len(chunks)} chunks", text, chunks[-1].choices[0].finish_reason)
    return int(failures > 0)


def report(name: str, text: str | None, finish: str | None) -> int:
    """Prints the line of one call; returns 1 if it had no answer."""
    ok = bool(text) and finish == "stop"
    shown = (text or "").replace("\n", " ")[:80]
    print(f"{'OK   ' if ok else 'FAIL '} {name}: {shown!r} ({finish})")
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
