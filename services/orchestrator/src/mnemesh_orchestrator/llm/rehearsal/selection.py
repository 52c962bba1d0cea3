"""The rehearsal as the manager of a dynamic group: it selects the members in their order, and then ends the round."""

import re
from typing import Final

_QUESTION: Final = "You manage a conversation of several agents. Select the one that speaks next."
_MEMBER: Final = re.compile(
    r"^- id: (?P<id>agent-[0-9a-f-]+), name: (?P<name>.+?)(?:, description: .*)?$", re.MULTILINE
)
_SAID: Final = re.compile(r"^Said since your last selection:$", re.MULTILINE)
_TOKEN: Final = re.compile(r"^If the conversation is complete, answer (?P<token>.+)\Z", re.MULTILINE | re.DOTALL)
_REPEATED: Final = re.compile(
    r"^(?P<name>.+) spoke last, and no member speaks twice in a row\. Select again\.$", re.MULTILINE
)


def selection_answer(text: str) -> str | None:
    """Returns the answer to the question who speaks next; None if the text asks no such question."""
    start = text.rfind(_QUESTION)
    if start < 0 or (token := _TOKEN.search(text, start)) is None:
        return None
    said = _SAID.search(text, start)
    members = [
        (match["id"], match["name"]) for match in _MEMBER.finditer(text, start, said.start() if said else len(text))
    ]
    names = [name for _, name in members]
    repeated = _REPEATED.search(text, 0, start)
    last = repeated["name"] if repeated else _last_speaker(text[said.end() :], names) if said else None
    position = names.index(last) + 1 if last in names else 0
    if position >= len(members):
        return token["token"].strip()
    agent_id, name = members[position]
    return name if sum(other.casefold() == name.casefold() for other in names) == 1 else agent_id


def _last_speaker(said: str, names: list[str]) -> str | None:
    speakers = (name for line in reversed(said.splitlines()) for name in names if line.startswith(f"{name}: "))
    return next(speakers, None)
