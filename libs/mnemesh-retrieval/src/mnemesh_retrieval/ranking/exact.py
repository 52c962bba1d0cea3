"""Whether a query equals a text."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from mnemesh_retrieval.words.speakers import split_speaker
from mnemesh_retrieval.words.tokens import normal_form

_GAP: Final = re.compile(r"[\W_]+")


def normalized(text: str) -> str:
    """Returns the letters and digits of a text in lower case, with single spaces between words.

    The name of the speaker is left out. A text without letters and digits is returned without spaces around it.
    """
    folded = normal_form("NFKC", text).casefold()
    spoken = split_speaker(folded, is_folded=True)[1].strip()
    return _GAP.sub(" ", spoken).strip() or spoken


def fingerprint(text: str) -> str:
    """Returns 16 hexadecimal digits that are the same for texts that are equal when normalized."""
    return blake2b(normalized(text).encode(errors="replace"), digest_size=8).hexdigest()
