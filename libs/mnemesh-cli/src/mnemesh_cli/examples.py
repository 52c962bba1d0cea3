"""Examples that the help of commands ends with, by the path of the command or group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

EXAMPLES: Final[Mapping[str, Sequence[str]]] = {
    "": ("mnemesh up --chat", "mnemesh agents create ada", "mnemesh chat --agent ada", "mnemesh agents list --json"),
    "up": ("mnemesh up", "mnemesh up --chat", "mnemesh up --background --data-dir /srv/mnemesh"),
    "chat": ("mnemesh chat", "mnemesh chat --agent ada", "echo 'What is my name?' | mnemesh chat --agent ada"),
    "search": ('mnemesh search "When is the launch?" --agent ada', 'mnemesh search launch "start date" --in passages'),
    "export": ("mnemesh export ada", "mnemesh export ada --file ada.mnemesh", "mnemesh export ada --format letta"),
    "import": ("mnemesh import ada.mnemesh", "mnemesh import agent.af --model openai/gpt-6-luna"),
    "watch": ("mnemesh watch docs --folder manual", "mnemesh watch docs --folder manual --delete --once --wait"),
    "logs": ("mnemesh logs -f", "mnemesh logs orchestrator -n 50"),
    "agents": ("mnemesh agents list", "mnemesh agents create ada", "mnemesh agents show ada"),
    "agents create": (
        'mnemesh agents create ada --human "Likes tea."',
        "mnemesh agents create ada --model openai/gpt-6-luna --tool web_search --tag team",
        "mnemesh agents create eve --sleeptime",
    ),
    "agents update": (
        "mnemesh agents update ada --model openai/gpt-6-luna",
        "mnemesh agents update ada --extract-facts 5",
    ),
    "approvals": ("mnemesh approvals list", "mnemesh approvals answer ada --approve"),
    "archives": ("mnemesh archives create notes --agent ada", "mnemesh archives list"),
    "blocks": ('mnemesh blocks create rules "Be brief." --agent ada', "mnemesh blocks list --agent ada"),
    "conversations": ("mnemesh conversations list --agent ada", "mnemesh chat --conversation conv-1a2b3c4d"),
    "files": (
        "mnemesh files upload README.md docs --folder manual --wait",
        'mnemesh files search "What happens after a crash?" --agent librarian',
    ),
    "folders": ('mnemesh folders create manual -d "The manual."', "mnemesh folders attach manual librarian"),
    "groups": ("mnemesh groups create ada bob -d duo", "mnemesh chat --group duo"),
    "mcp-servers": (
        "mnemesh mcp-servers create tickets https://tickets.example.com/mcp",
        "mnemesh mcp-servers create time uvx mcp-server-time",
        "mnemesh mcp-servers tools tickets",
    ),
    "memory": (
        "mnemesh memory show ada",
        'mnemesh memory edit ada human --value "Likes tea."',
        "mnemesh memory facts ada",
    ),
    "messages": ('mnemesh messages send ada "My name is Ada."', "mnemesh messages list --agent ada"),
    "passages": (
        'mnemesh passages create "The launch is on Friday." --agent ada',
        "mnemesh passages search launch -a ada",
    ),
    "profiles": (
        "mnemesh profiles set team --address mesh.example.org:50050 --token-file team.token",
        "mnemesh agents list --profile team",
    ),
    "providers": (
        "mnemesh providers create local --type openai_compatible --base-url http://127.0.0.1:8080/v1",
        "mnemesh providers check local",
    ),
    "runs": ("mnemesh runs list --agent ada", "mnemesh runs trace run-1a2b3c4d", "mnemesh runs logs run-1a2b3c4d -f"),
    "tokens": ("mnemesh tokens create --key-file data/auth.keys --days 30",),
    "tools": (
        "mnemesh tools create weather.py",
        'mnemesh tools run weather \'{"city": "Berlin"}\'',
        "mnemesh tools list --builtin",
    ),
}


def with_examples(command: Any, path: str) -> None:
    """Adds the examples of a command to the end of its help, each on a line of its own."""
    if lines := EXAMPLES.get(path):
        command.epilog = "\n\n".join(("Examples:", *lines))
