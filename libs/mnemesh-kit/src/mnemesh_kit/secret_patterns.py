"""Credentials and payment cards in texts, found by their patterns."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final


@dataclass(frozen=True, slots=True)
class FoundSecret:
    """A secret in a text, from `start` to `end`. `kind` names it for people, such as "API key"."""

    kind: str
    start: int
    end: int


# The group "value" is the secret; without one, the whole match.
_PATTERNS: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "private key",
            r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY[A-Z ]{0,9}-----(?s:.*?-----END [A-Z ]{1,40}-----|.*)",
        ),
        ("API key", r"\bsk-[A-Za-z0-9_-]{20,200}"),
        ("API key", r"\b(?:sk|rk|pk|whsec)_(?:live_|test_)?[A-Za-z0-9]{16,200}\b"),
        ("API key", r"\bAIza[0-9A-Za-z_-]{35}"),
        ("API key", r"\bSG\.[A-Za-z0-9_-]{16,40}\.[A-Za-z0-9_-]{16,80}"),
        ("AWS key", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
        ("access token", r"\bgh[pousr]_[A-Za-z0-9]{36,255}\b"),
        ("access token", r"\bgithub_pat_[A-Za-z0-9_]{22,255}\b"),
        ("access token", r"\bglpat-[A-Za-z0-9_-]{20,64}"),
        ("access token", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,250}"),
        ("access token", r"\b(?:hf|npm|dop_v1|pypi)[_-][A-Za-z0-9_-]{30,250}"),
        ("access token", r"\b[0-9]{8,10}:[A-Za-z0-9_-]{35}\b"),
        ("access token", r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
        ("access token", r"(?i)\bbearer\s+(?P<value>[a-z0-9._~+/-]{20,}=*)"),
        ("password", r"\b[a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s:/@]{1,100}:(?P<value>[^\s:/@]{3,200})@"),
    )
)
_NAMES: Final = (
    r"(?:password|passwd|pwd|passcode|passphrase|pass phrase|passwort|kennwort|contraseña|senha"
    r"|mot de passe|пароль|pin|pin code|api[ _-]?key|api[ _-]?token|access[ _-]?key|access[ _-]?token"
    r"|secret[ _-]?key|client[ _-]?secret"
    r"|auth[ _-]?token)"
)
_ASSIGNED: Final = re.compile(
    rf"(?i)(?<![^\W_]){_NAMES}(?![^\W_])[\"'`]?\s*[:=]\s*[\"'`“]?(?P<value>[^\s\"'`”]{{4,200}})"
)
_SAID: Final = re.compile(
    rf"(?i)(?<![^\W_]){_NAMES}(?![^\W_])(?: (?:for|of|to|on) [^.!?\n]{{1,60}}?)? (?:is|was|ist|lautet|es|est|è)"
    r"(?: now)? [\"'`“]?(?P<value>[^\s\"'`”]{4,200})"
)
_CARD: Final = re.compile(r"(?<![\w+.,-])[3-6](?:[ -]?[0-9]){12,18}(?![\w-]|[.,][0-9])")
_CLOSING: Final = ".,;:!?)]}»"
_PLACEHOLDER: Final = re.compile(r"[*•x.…_<>\[\]{}-]+|<[^>]*>|\[.*|\$?\{[^}]*\}|%[^%]*%", re.IGNORECASE)


def find_secrets(text: str) -> tuple[FoundSecret, ...]:
    """Returns the secrets of a text in order. Overlapping matches are one secret, of the kind of the longest."""
    found = sorted(_matches(text), key=lambda secret: (secret.start, -secret.end))
    result: list[FoundSecret] = []
    for secret in found:
        if result and secret.start < result[-1].end:
            last = result[-1]
            result[-1] = FoundSecret(last.kind, last.start, max(last.end, secret.end))
        else:
            result.append(secret)
    return tuple(result)


def mask_secrets(text: str) -> str:
    """Returns a text in which `[… removed]` stands for each secret."""
    parts, position = [], 0
    for secret in find_secrets(text):
        parts += [text[position : secret.start], f"[{secret.kind} removed]"]
        position = secret.end
    return "".join((*parts, text[position:]))


def _matches(text: str) -> Iterator[FoundSecret]:
    for kind, pattern in _PATTERNS:
        for match in pattern.finditer(text):
            group = "value" if "value" in pattern.groupindex else 0
            yield FoundSecret(kind, match.start(group), match.end(group))
    for pattern, is_said in ((_ASSIGNED, False), (_SAID, True)):
        for match in pattern.finditer(text):
            value = match["value"].rstrip(_CLOSING)
            if _is_value(value, is_said=is_said):
                yield FoundSecret("password", match.start("value"), match.start("value") + len(value))
    for match in _CARD.finditer(text):
        if _is_card(match[0]):
            yield FoundSecret("card number", match.start(), match.end())


def _is_value(value: str, *, is_said: bool) -> bool:
    """Returns whether a word is a secret rather than a word of a sentence about one ("the password is long")."""
    if len(value) < 4 or _PLACEHOLDER.fullmatch(value):
        return False
    has_mark = any(character.isdigit() for character in value) or any(
        not character.isalnum() and character not in "-'’/" for character in value
    )
    return has_mark or (not is_said and len(value) >= 8)


def _is_card(text: str) -> bool:
    """Returns whether digits pass Luhn's check and are not one digit repeated."""
    digits = [int(character) for character in text if character.isdigit()]
    if len(digits) < 13 or all(first == second for first, second in pairwise(digits)):
        return False
    doubled = (digit * 2 - 9 if digit > 4 else digit * 2 for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0
