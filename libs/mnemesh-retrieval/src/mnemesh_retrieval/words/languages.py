"""The language of a text in Latin letters, by its function words and its letters."""

from collections import Counter
from collections.abc import Sequence
from importlib import resources
from typing import Final

DEFAULT: Final = "english"
"""The language of texts that have no function words, or as many English ones as others."""
CODES: Final = {
    "czech": "cs", "danish": "da", "dutch": "nl", "finnish": "fi", "french": "fr", "german": "de", "hungarian": "hu",
    "italian": "it", "norwegian": "no", "polish": "pl", "portuguese": "pt", "romanian": "ro", "spanish": "es",
    "swedish": "sv", "turkish": "tr",
}  # fmt: skip
"""The languages other than the default, with their codes."""
LANGUAGES: Final = tuple(CODES)
_MARKS: Final = ("¿", "¡")
READ_WORDS: Final = 200
"""The number of words at the beginning of a text that decide."""
SHORT_TEXT: Final = 4
"""In a text of at most so many words, one function word decides; in others, two."""
_LETTERS: Final = {
    "czech": "áčďéěíňóřšťúůýž", "danish": "æøå", "finnish": "äö", "french": "àâçèéêëîïôûœ", "german": "äöü",
    "hungarian": "áéíóúöőüű", "italian": "àèéìòù", "norwegian": "æøå", "polish": "ąćęłńóśźż",
    "portuguese": "áâãçéêíóôõú", "romanian": "ăâîșşțţ", "spanish": "áéíóúñ¿¡", "swedish": "äåö", "turkish": "çğışöü",
}  # fmt: skip
"""Letters and marks that English has not. They support a language that also has a function word in the text."""
_COMMON_FIRST: Final = (
    "french", "spanish", "german", "portuguese", "italian", "turkish", "polish", "dutch", "romanian", "czech",
    "swedish", "hungarian", "danish", "finnish", "norwegian",
)  # fmt: skip
"""Of languages with as many words and letters, the first one here."""
_LINES: Final = (resources.files("mnemesh_retrieval.words") / "function_words.txt").read_text(encoding="utf-8")


_WORDS: Final = {language: frozenset(words) for language, *words in map(str.split, _LINES.splitlines())}
_ENGLISH: Final = _WORDS[DEFAULT]
_LANGUAGES_OF: Final = {
    word: tuple(language for language in LANGUAGES if word in _WORDS[language])
    for word in frozenset().union(*(_WORDS[language] for language in LANGUAGES))
}
_LANGUAGES_OF_LETTER: Final = {
    letter: tuple(language for language, letters in _LETTERS.items() if letter in letters)
    for letter in "".join(_LETTERS.values())
}


def language_of(words: Sequence[str], text: str = "") -> str:
    """Returns the language of a text: the one of most of its different function words.

    English if no other language has more. Of others with as many, the most common one; of these in short texts, none.
    Deterministic: the same text has the same language whatever other texts there are.

    Args:
        words: the words of the text as `words_of` returns them, in order.
        text: the text, whose inverted question and exclamation marks are read.
    """
    read = words[:READ_WORDS]
    different = set(read)
    others = _LANGUAGES_OF.keys() & different
    if not others:
        return DEFAULT
    own = len(_ENGLISH & different)
    letters = set("".join(word for word in different if not word.isascii())) | {mark for mark in _MARKS if mark in text}
    if own >= len(others) and not letters:
        return DEFAULT
    counts = Counter(language for word in others for language in _LANGUAGES_OF[word])
    supported = frozenset(counts)
    for letter in letters:
        counts.update(language for language in _LANGUAGES_OF_LETTER.get(letter, ()) if language in supported)
    most = max(counts.values())
    best = [language for language in _COMMON_FIRST if counts[language] == most]
    if most <= own or (most == 1 and (len(best) > 1 or len(read) > SHORT_TEXT)):
        return DEFAULT
    return best[0]
