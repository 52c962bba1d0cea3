"""Text whose word frequencies follow Zipf's law, like natural language."""

import itertools
import random
from bisect import bisect
from collections.abc import Iterator, Sequence
from typing import Final

WORDS: Final = 20_000
"""The number of different words, without function words."""
FUNCTION_WORDS: Final = tuple(
    word
    for line in (
        "the of and to a in is it you that he was for on are with as I his they be at one have this from or had by not",
        "but what all were we when your can said there use an each which she do how their if will up other about out",
    )
    for word in line.split()
)
FUNCTION_SHARE: Final = 0.4
"""The share of function words in a sentence."""
RANKS: Final = {"rare": (3_000, 6_000), "middling": (60, 160), "common": (2, 8)}
"""The ranks of the words of each kind. Of 5,000 messages, about 2 contain a rare, 50 a middling and 1,000 a common
word."""
_SYLLABLES: Final = tuple("".join(parts) for parts in itertools.product("bdfgklmnprstvz", "aeiou"))
_ENDINGS: Final = ("", "n", "r", "l", "s", "t", "m", "k")


class Corpus:
    """A vocabulary and sentences. The same seed and position generate the same text."""

    def __init__(self, seed: int = 11) -> None:
        self._seed = seed
        self.words = tuple(itertools.islice(_vocabulary(random.Random(seed)), WORDS))
        self._weights = list(itertools.accumulate(1 / rank for rank in range(1, WORDS + 1)))

    def text(self, *position: object) -> str:
        """Returns one to three sentences of 6 to 18 words."""
        chance = random.Random(f"{self._seed} {position}")
        return " ".join(self._sentence(chance) for _ in range(chance.choice((1, 1, 2, 3))))

    def query(self, kind: str, number: int) -> str:
        """Returns a question with two words of a kind."""
        chance = random.Random(f"{self._seed} {kind} {number}")
        first, second = chance.sample(self.words[slice(*RANKS[kind])], 2)
        return f"What was it about the {first} and {second}?"

    def of_kind(self, kind: str) -> Sequence[str]:
        """Returns the words of a kind."""
        return self.words[slice(*RANKS[kind])]

    def _sentence(self, chance: random.Random) -> str:
        words = [self._word(chance) for _ in range(chance.randrange(6, 19))]
        return f"{' '.join(words).capitalize()}."

    def _word(self, chance: random.Random) -> str:
        if chance.random() < FUNCTION_SHARE:
            return chance.choice(FUNCTION_WORDS)
        return self.words[bisect(self._weights, chance.random() * self._weights[-1])]


def _vocabulary(chance: random.Random) -> Iterator[str]:
    """Yields unique artificial words with different stems."""
    seen = set(FUNCTION_WORDS)
    while True:
        word = "".join(chance.choices(_SYLLABLES, k=chance.choice((2, 2, 3)))) + chance.choice(_ENDINGS)
        stem = word.rstrip("s")
        if stem not in seen and not word.endswith(("ss", "er", "est", "al", "en", "es", "ed", "ies", "e")):
            seen.add(stem)
            yield word
