"""Secrets in texts."""

import pytest
from mnemesh_kit.secret_patterns import find_secrets, mask_secrets

SECRETS = {
    "My password is hunter2!x, by the way.": "My password is [password removed], by the way.",
    "password: correcthorse": "password: [password removed]",
    "The PIN for the door is 4821.": "The PIN for the door is [password removed].",
    "Das Passwort lautet geheim#9": "Das Passwort lautet [password removed]",
    "api_key = 'abcd1234efgh'": "api_key = '[password removed]'",
    "key sk-proj-abcdefghijklmnopqrstuvwx": "key [API key removed]",
    "aws AKIAIOSFODNN7EXAMPLE": "aws [AWS key removed]",
    f"token ghp_{'a1' * 18}": "token [access token removed]",
    f"Authorization: Bearer {'ab12' * 8}": "Authorization: Bearer [access token removed]",
    "eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM": "[access token removed]",
    "postgres://ana:s3cret@db/x": "postgres://ana:[password removed]@db/x",
    "card 4111 1111 1111 1111 ok": "card [card number removed] ok",
    "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY----- after": "[private key removed] after",
}
CLEAN = [
    "The password is long and changes every month.",
    "Ana forgot her password twice",
    "password: <hidden>",
    "password: ********",
    "order 1234567890123456 arrived",
    "call +49 170 1234567890123",
    "4444 4444 4444 4444",
    "https://example.com/a:b@c",
    "The pin is on the map",
    "fact-3f2b8c1e-1111-4222-8333-444455556666",
    "sk-1",
    "",
]


@pytest.mark.parametrize("text", SECRETS)
def test_secret_is_masked_once(text: str) -> None:
    masked = mask_secrets(text)
    assert masked == SECRETS[text]
    assert mask_secrets(masked) == masked


@pytest.mark.parametrize("text", CLEAN)
def test_ordinary_text_has_no_secret(text: str) -> None:
    assert find_secrets(text) == ()


def test_long_text_takes_no_time_beyond_its_length() -> None:
    for part in ("password ", "4111-", "a:", "sk-", "-----BEGIN PRIVATE KEY-----", "eyJa.", "x://y:"):
        find_secrets(part * (200_000 // len(part)))
