"""A process that reads one large source: `python -m mnemesh_tools.schema.worker`, with a request on stdin.

Parsing can take seconds for some sources, in which it lets no other thread run. A process can be stopped.
"""

import json
import resource
import subprocess
import sys
from dataclasses import asdict
from typing import Any, Final

from mnemesh_tools.errors import ToolSourceInvalid
from mnemesh_tools.schema.source import FunctionSchema, SourceFacts, read_source
from mnemesh_tools.schema.typescript import read_typescript

_MEMORY_BYTES: Final = 1024**3


def read_in_process(language: str, source: str, field: str, name: str | None, seconds: float) -> SourceFacts:
    """Returns the facts about a source, as `read_source` and `read_typescript` do, in a process of its own.

    Args:
        language: "python" or "typescript".
        source: The source.
        field: The request's field, for errors.
        name: A function at the top level of the source.
        seconds: The longest time that the process may run.

    Raises:
        ToolSourceInvalid: The source cannot be read, or not in this time.
    """
    request = json.dumps({"language": language, "source": source, "field": field, "name": name, "seconds": seconds})
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "mnemesh_tools.schema.worker"],
            input=request.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=True,
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        raise ToolSourceInvalid(f"The source cannot be parsed within {seconds:g} seconds.", field=field) from error
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise ToolSourceInvalid(answer["error"], **answer["metadata"])
    schema = answer.pop("schema")
    answer["parameters"] = tuple(answer["parameters"])
    return SourceFacts(**answer, schema=None if schema is None else FunctionSchema(**schema))


def main() -> None:
    """Answers the request on stdin."""
    request = json.loads(sys.stdin.buffer.read())
    seconds = round(request["seconds"])
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    answer: dict[str, Any]
    try:
        read = read_typescript if request["language"] == "typescript" else read_source
        answer = asdict(read(request["source"], request["field"], name=request["name"]))
    except ToolSourceInvalid as error:
        answer = {"error": error.message, "metadata": dict(error.metadata)}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
