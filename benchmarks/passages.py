"""Generates notes of facts, and questions with known evidence."""

import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PEOPLE: Final = 20
"""The number of people in the notes of one archive."""
FACTS: Final = 14
"""The number of facts about each person."""
_CONTENT: Final = Path(__file__).parent / "data" / "facts.toml"


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the numbers of the passages any of which answers it."""

    kind: str
    text: str
    evidence: frozenset[int]


@dataclass(frozen=True, slots=True)
class Shelf:
    """The passages of one archive, and the questions about them."""

    passages: tuple[str, ...]
    questions: tuple[Asked, ...]


def notes(count: int, seed: int = 7) -> list[Shelf]:
    """Generates archives of short notes, each with the name of a person."""
    content = tomllib.loads(_CONTENT.read_text(encoding="utf-8"))
    return [_noted(content, random.Random(seed * 1000 + number)) for number in range(count)]


def _noted(content: dict[str, Any], chance: random.Random) -> Shelf:
    told: list[tuple[str, list[Asked]]] = []
    for who in content["lists"]["who"][:PEOPLE]:
        for fact in chance.sample(content["facts"], FACTS):
            filled = {name: chance.choice(values) for name, values in content["lists"].items()} | {"who": who}
            asked_of = [Asked(kind, fact[kind].format(**filled), frozenset()) for kind in ("exact", "other")]
            told.append((f"{who}: {chance.choice(fact['said']).format(**filled)}", asked_of))
            told += [(f"{who}: {text}", []) for text in _around(content, fact, chance)]
    chance.shuffle(told)
    questions = tuple(
        Asked(asked.kind, asked.text, frozenset({number}))
        for number, (_, several) in enumerate(told)
        for asked in several
    )
    return Shelf(tuple(text for text, _ in told), questions)


def _around(content: dict[str, Any], fact: dict[str, Any], chance: random.Random) -> Iterator[str]:
    yield chance.choice(fact["talk"])
    for _ in range(chance.randrange(3)):
        yield chance.choice(content["chat"])
