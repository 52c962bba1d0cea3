"""A fake OpenID Connect issuer: it publishes its configuration and its keys over HTTP, and signs tokens."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

AUDIENCE: Final = "mnemesh-of-the-team"
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def new_key(algorithm: str) -> PrivateKey:
    """Returns a private key for an algorithm of tokens."""
    if algorithm == "RS256":
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return ec.generate_private_key(ec.SECP256R1()) if algorithm == "ES256" else ed25519.Ed25519PrivateKey.generate()


class FakeIssuer:
    """A context manager. The server runs in a thread."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, PrivateKey]] = {"first": ("ES256", new_key("ES256"))}
        """The published keys: name → algorithm and key."""
        self.is_away = False
        """Whether requests fail."""
        self.has_moved = False
        """Whether `/keys` redirects to another path, which has the keys."""
        self.named: str | None = None
        """The issuer that the configuration names, if it is another one."""
        self.requests: list[str] = []
        """The paths of all requests."""
        self.proceed = threading.Event()
        """Holds back the answers while it is not set."""
        self.proceed.set()
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.requests.append(self.path)
                issuer.proceed.wait(30)
                body = json.dumps(issuer.answer(self.path)).encode()
                is_moved = issuer.has_moved and self.path == "/keys"
                self.send_response(503 if issuer.is_away else 302 if is_moved else 200)
                if is_moved:
                    self.send_header("Location", "/moved")
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.proceed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def answer(self, path: str) -> dict[str, Any]:
        """Returns what a path says."""
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.named or self.url, "jwks_uri": f"{self.url}/keys"}
        return {"keys": [self._published(name) for name in self.keys]}

    def token(self, *, key: str = "first", claims: dict[str, Any] | None = None, **header: Any) -> str:
        """Returns a token that is valid for a minute.

        Args:
            key: the name of the key that signs it.
            claims: replace the usual ones; None removes one.
            header: replaces fields of the header.
        """
        algorithm, private = self.keys[key]
        return jwt.encode(self.claims(claims), private, algorithm=algorithm, headers={"kid": key, **header})

    def claims(self, changes: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the claims of a token, with changes."""
        now = int(time.time())
        usual = {"iss": self.url, "aud": AUDIENCE, "sub": "auth0|ada", "roles": ["writer"], "iat": now, "exp": now + 60}
        return {name: value for name, value in (usual | (changes or {})).items() if value is not None}

    def _published(self, name: str) -> dict[str, Any]:
        algorithm, private = self.keys[name]
        kind: Any = jwt.get_algorithm_by_name(algorithm)
        return {**kind.to_jwk(private.public_key(), as_dict=True), "kid": name, "use": "sig"}
