"""The names that files of a directory have in a folder.

A folder has no subfolders. A file keeps its relative path in its name, with "--" between the parts: "guide/intro.md" is
"guide--intro.md". `File.path` is the relative path itself, by which the file is found again.
"""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Final

SEPARATOR: Final = "--"
_LONGEST: Final = 255
_DIGEST_CHARS: Final = 12


def folder_name_of(path: str) -> str:
    """Returns the name in a folder of the file with a relative path.

    Characters are normalized to NFC, because some systems store "é" as two characters. A name of more than 255
    characters begins with a hash of the path and keeps the end.
    """
    name = unicodedata.normalize("NFC", path).replace("/", SEPARATOR)
    if len(name) <= _LONGEST:
        return name
    digest = hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:_DIGEST_CHARS]
    return f"{digest}{SEPARATOR}{name[-(_LONGEST - _DIGEST_CHARS - len(SEPARATOR)) :]}"
