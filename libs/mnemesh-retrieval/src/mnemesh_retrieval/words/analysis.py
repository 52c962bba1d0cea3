"""The words of texts and queries, as word indexes store and search them: tokens, stems, terms."""

import re
import threading
import unicodedata
from collections.abc import Collection, Sequence
from functools import lru_cache
from importlib import resources
from itertools import islice, pairwise
from typing import Final, Literal

import Stemmer

from mnemesh_retrieval.words.languages import CODES, DEFAULT, LANGUAGES, language_of

_CHARACTER = "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
CJK_CHARACTER = re.compile(f"({_CHARACTER})")
CJK_RUN = re.compile(f"{_CHARACTER}+")
"""Matches a run of such characters; CJK_CHARACTER matches one."""


WORD_CHARACTERS: Final = 256
"""The length to which a word is cut. PostgreSQL ignores words of more than 2,046 bytes."""
_WORD: Final = re.compile(r"[^\W_]+")
_ASCII_WORD: Final = re.compile("[a-z0-9]+")
_MARKS: Final = re.compile("[\u0300-\u036f]+")
_SYMBOLS: Final = re.compile(r"[^\w\s]{32,}")
"""Contains no letter. Unicode's normal form of many combining marks takes time that grows with their square."""
_LONG_SYMBOLS: Final = re.compile(r"([^\w\s\x00-\x7f]{32})[^\w\s\x00-\x7f]+")
_APOSTROPHES: Final = str.maketrans(dict.fromkeys("\u2018\u2019\u02bc\u2032\uff07", "'"))
_NEGATION: Final = re.compile(r"(?<![^\W\d_])([^\W\d_]+)n't\b")
_CLITIC: Final = re.compile(r"(?<=[^\W_])'(?:s|d|m|ll|re|ve)\b")
"""The possessive, and short forms of "is", "would", "am", "will", "are" and "have"."""
_NEGATED: Final = {"wo": "will", "sha": "shall", "ca": "can", "ai": "is"}
_PLAIN_LETTERS: Final = str.maketrans(
    {"\u0131": "i", "\u00f8": "o", "\u0111": "d", "\u0142": "l", "\u00e6": "ae", "\u0153": "oe", "\u00f0": "d",
     "\u00fe": "th", "\u00df": "ss"}
)  # fmt: skip
"""Latin letters that Unicode does not decompose."""


def words_of(text: str) -> list[str]:
    """Returns the words of a text, in order. Each Kana or Han character is a word.

    Words are in lower case, with their accents. Full-width letters and ligatures become plain letters, "won't" is "will
    not", "don't" is "do not", and "Anna's" is "anna".
    """
    lowered = _without_apostrophes(_lowered(text))
    if lowered.isascii():
        found = _ASCII_WORD.findall(lowered)
    else:
        found = _WORD.findall(CJK_RUN.sub(lambda run: f" {' '.join(run.group())} ", lowered))
    return found if len(lowered) <= WORD_CHARACTERS else [word[:WORD_CHARACTERS] for word in found]


def query_words_of(query: str) -> list[str]:
    """Returns the words of a query like `words_of`. A run of Kana or Han characters is one word."""
    found: list[str] = []
    for word in _WORD.findall(_without_apostrophes(_lowered(query))):
        parts = [word] if word.isascii() else CJK_RUN.sub(r" \g<0> ", word).split()
        found += [part[:WORD_CHARACTERS] for part in parts]
    return found


def folded(word: str) -> str:
    """Returns a word in lower case without accents."""
    if word.isascii():
        return word
    # A letter such as ǽ is plain after its accent is gone.
    bare = _MARKS.sub("", unicodedata.normalize("NFD", word))
    return unicodedata.normalize("NFC", bare.translate(_PLAIN_LETTERS))


def normal_form(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    """Returns a text in a normal form of Unicode, in linear time: of a long run of symbols the first 32 are kept."""
    return unicodedata.normalize(form, _LONG_SYMBOLS.sub(r"\1", text))


def _lowered(text: str) -> str:
    if text.isascii():
        return text.lower()
    plain = unicodedata.normalize("NFKC", _SYMBOLS.sub(" ", text)).casefold()
    composed = unicodedata.normalize("NFC", plain).translate(_APOSTROPHES)
    # One ligature may stand for 18 letters.
    return _MARKS.sub("", composed[: 2 * len(text) + WORD_CHARACTERS])


def _without_apostrophes(text: str) -> str:
    if "'" not in text:
        return text
    if "n't" in text:
        text = _NEGATION.sub(lambda found: f"{_NEGATED.get(found[1], found[1])} not", text)
    return _CLITIC.sub("", text)


_LINES: Final = (resources.files("mnemesh_retrieval.words") / "irregular_words.txt").read_text(encoding="utf-8")
BASES: Final = {form: base for base, *forms in map(str.split, _LINES.splitlines()) for form in forms}
"""The base of each irregular form, in lower case."""


LIBRARY: Final = f"snowball-{Stemmer.version()}"
STEMMED_CHARACTERS: Final = 64
"""Longer words are no words of a language. They stay as they are."""
_LATIN_END: Final = "\u024f"
_LATIN_EXTENDED: Final = ("\u1e00", "\u1eff")
_SCRIPTS: Final = (
    ("\u0370", "\u03ff", "greek"), ("\u1f00", "\u1fff", "greek"), ("\u0400", "\u052f", "russian"),
    ("\u0531", "\u058f", "armenian"), ("\u0620", "\u06ff", "arabic"),
)  # fmt: skip
"""The first and last letters of other scripts, with the algorithm for all words in them."""
_DOUBLED: Final = re.compile(r"(?<=..)([bdgmnprt])\1$")
_FLEETING: Final = re.compile("(?<=[бвгджзйклмнпрстфхцчшщь])[ео](?=[кц]$)")
_algorithms = threading.local()  # a Stemmer must not be used by two threads at once


@lru_cache(maxsize=1 << 16)
def stem(word: str, language: str = DEFAULT) -> str:
    """Returns the stem of a word of a text in a language, without accents.

    The language counts only for words in Latin letters. Stems of all languages but English end with a digit and the
    code of the language, so that a stem never matches an unrelated word of another language. Words in other scripts
    are stemmed by their script; words with digits, and very long ones, have no stem and are the same in all languages.
    """
    if len(word) > STEMMED_CHARACTERS or not word.isalpha():
        return folded(word)
    if word[0] > _LATIN_END and not _LATIN_EXTENDED[0] <= word[0] <= _LATIN_EXTENDED[1]:
        return folded(_of_script(word))
    if language == DEFAULT:
        return _english(folded(word))
    return f"{folded(_snowball(language, word))}9{CODES[language]}"


def _english(word: str) -> str:
    # The algorithm turns "programming" into "program", but "programmer" into "programm".
    found = _snowball(DEFAULT, BASES.get(word, word))
    return _DOUBLED.sub(r"\1", found) if len(found) > len("adding"[:4]) else found


def _of_script(word: str) -> str:
    for first, last, language in _SCRIPTS:
        if first <= word[0] <= last:
            found = _snowball(language, word)
            # Vowels that only some forms have: кошек, кошки.
            return _FLEETING.sub("", found) if language == "russian" and len(found) > len("урок") else found
    return word


def _snowball(language: str, word: str) -> str:
    stemmer: Stemmer.Stemmer | None = getattr(_algorithms, language, None)
    if stemmer is None:
        stemmer = Stemmer.Stemmer(language, 0)
        setattr(_algorithms, language, stemmer)
    return stemmer.stemWord(word) or word


VERSION: Final = f"3 {LIBRARY}"
"""The version of the analysis. Word indexes of another version are rebuilt. Increase the number when the words of any
text change; the version of the library is part of it, because new releases change stems."""
INDEXED_CHARACTERS: Final = 100_000
"""The length of the part of a text that is indexed. PostgreSQL limits the words of a document to 1 MB."""
MAX_TERMS: Final = 64

STOP_WORDS: Final = frozenset(
    (resources.files("mnemesh_retrieval.words") / "stop_words.txt").read_text(encoding="utf-8").split()
)


def analysed(text: str, limit: int = INDEXED_CHARACTERS, language: str | None = None) -> tuple[list[str], str]:
    """Returns the words of a text as indexes store them, and its language.

    Args:
        text: the text.
        limit: the length of the part of the text that is analysed.
        language: the language of a text of which this is a part; by default that of this text.
    """
    words = words_of(text[:limit])
    language = language or language_of(words, text[:limit])
    return [stem(word, language) for word in words], language


def indexed(text: str, limit: int = INDEXED_CHARACTERS, language: str | None = None) -> str:
    """Returns the words of a text as the index stores them: folded, stemmed, separated by single spaces."""
    return " ".join(analysed(text, limit, language)[0])


def text_language(text: str) -> str:
    """Returns the language in which a text is analysed."""
    read = text[:INDEXED_CHARACTERS]
    return language_of(words_of(read), read)


def terms(query: str, languages: Collection[str] = ()) -> dict[str, str]:
    """Returns the terms of a query, which are combined by OR: words, or phrases of words, in the form of `indexed`.

    A word has a term for each language of the index: any form of it that is in a text finds the text, whatever the
    language of the query. Stop words are left out unless the query has no other word. A term consists of letters,
    digits and single spaces, so it needs no quoting in any query language.

    Args:
        query: the query.
        languages: the languages of indexed texts beside English.

    Returns:
        At most 64 terms, each with the English term of its word. Terms of one word count as one word, of which a text
        has at most one: the rarity of each is that of all.
    """
    words = [term for word in _significant(query) for term in _phrases(word)]
    return dict(islice(_stems(words, languages).items(), MAX_TERMS))


def query_words(query: str) -> dict[str, str]:
    """Returns the first 64 words of a query for an index without phrases, in all languages; else like `terms`."""
    words = dict.fromkeys(part for word in _significant(query) for part in _characters(word))
    return _stems(list(islice(words, MAX_TERMS)), LANGUAGES)


def _significant(query: str) -> list[str]:
    found = list(dict.fromkeys(query_words_of(query[:INDEXED_CHARACTERS])))
    return [word for word in found if folded(word) not in STOP_WORDS] or found


def _stems(words: Sequence[str], languages: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        own = found.setdefault(stem(word), stem(word))
        for language in languages:
            found.setdefault(stem(word, language), own)
    return found


def _phrases(word: str) -> list[str]:
    """Returns a word; the pairs of characters of a run of Kana or Han, each as a phrase."""
    if word.isascii() or len(word) == 1 or not CJK_CHARACTER.match(word):
        return [word]
    return [" ".join(pair) for pair in pairwise(word)]


def _characters(word: str) -> Sequence[str]:
    return word if CJK_CHARACTER.match(word) else (word,)
