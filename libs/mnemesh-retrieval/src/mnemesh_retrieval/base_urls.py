"""The rule of base URLs in settings, the same for every HTTP API that this library calls."""

import re
from typing import Final
from urllib.parse import urlsplit

_MAX_CHARACTERS: Final = 2_000
_VISIBLE: Final = re.compile(r"[!-~]+")


def base_url_problem(url: str) -> str | None:
    """Returns what is wrong with a base URL, None if nothing is. The answer does not contain the URL."""
    if len(url) > _MAX_CHARACTERS or not _VISIBLE.fullmatch(url):
        return f"must have 1 to {_MAX_CHARACTERS:,} visible ASCII characters"
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        return "must be an http or https URL"
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        return "must have neither credentials nor a query; set the API key in its own setting"
    return None
