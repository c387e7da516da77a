"""A broker that asks for tokens, an OAuth server that gives them, and a function that gives them too."""

from __future__ import annotations

import json
import os
import threading
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from precede.local.embedded_broker import HOST, Broker, free_port

CLIENT, SECRET = "the-job", "a s3cret, of (words)"
KEY_FILE = "TEST_TOKEN_KEY"
"""A variable: the key with which `token` signs. Where the file is gone, there are no tokens."""
LIFE_S = "TEST_TOKEN_LIFE_S"
MODULES = "org.apache.kafka.common.security.oauthbearer"
VALIDATOR = f"{MODULES}.OAuthBearerValidatorCallbackHandler"


def token() -> tuple[str, float]:
    """What the setting sasl_token_provider names."""
    key = load_pem_private_key(Path(os.environ[KEY_FILE]).read_bytes(), None)
    assert isinstance(key, RSAPrivateKey)
    life_s = float(os.environ.get(LIFE_S, "300"))
    return signed(key, life_s), time.time() + life_s


def signed(key: RSAPrivateKey, life_s: float, *, subject: str = CLIENT) -> str:
    """A token in the form of a JWT."""
    now = int(time.time())
    claims = {"sub": subject, "iat": now, "exp": now + int(life_s), "scope": "kafka"}
    parts = [_encoded(json.dumps(one).encode()) for one in ({"alg": "RS256", "kid": "test"}, claims)]
    signature = key.sign(".".join(parts).encode(), PKCS1v15(), SHA256())
    return ".".join([*parts, _encoded(signature)])


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int) -> str:
    return _encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


class TokenServer:
    """The token endpoint of an OAuth server: one client, by its id and secret."""

    def __init__(self, key: RSAPrivateKey) -> None:
        self.key = key
        self.life_s = 300.0
        self.asked = 0
        wanted = "Basic " + b64encode(f"{CLIENT}:{SECRET}".encode()).decode()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server.asked += 1
                is_known = self.headers.get("Authorization") == wanted
                found = {"access_token": signed(server.key, server.life_s), "expires_in": int(server.life_s)}
                text = json.dumps(found if is_known else {"error": "invalid_client"}).encode()
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(200 if is_known else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        server = self
        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self.url = f"http://{HOST}:{self._server.server_address[1]}/token"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class TokenBroker:
    """A broker with an open listener for preparations, and one that asks for tokens signed by `key`."""

    def __init__(self, folder: Path) -> None:
        self.key = generate_private_key(65537, 2048)
        self.key_file = folder / "token.key"
        self.key_file.write_bytes(self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        numbers = self.key.public_key().public_numbers()
        public = {"kty": "RSA", "kid": "test", "alg": "RS256", "n": _number(numbers.n), "e": _number(numbers.e)}
        keys = folder / "jwks.json"
        keys.write_text(json.dumps({"keys": [public | {"use": "sig"}]}))
        port, inside, controller = free_port(), free_port(), free_port()
        self.bootstrap = f"{HOST}:{port}"
        self.keys_url = keys.as_uri()
        own = "listener.name.tokens"
        self.broker = Broker(
            inside,
            properties={
                "listeners": f"PLAINTEXT://{HOST}:{inside},TOKENS://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
                "controller.quorum.voters": f"1@{HOST}:{controller}",
                "advertised.listeners": f"PLAINTEXT://{HOST}:{inside},TOKENS://{HOST}:{port}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TOKENS:SASL_PLAINTEXT",
                "inter.broker.listener.name": "PLAINTEXT",
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": self.keys_url,
                f"{own}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": self.keys_url,
                f"{own}.oauthbearer.sasl.jaas.config": f"{MODULES}.OAuthBearerLoginModule required;",
                f"{own}.oauthbearer.sasl.server.callback.handler.class": VALIDATOR,
                f"{own}.oauthbearer.connections.max.reauth.ms": "4000",
            },
        )

    @contextmanager
    def running(self) -> Iterator[TokenBroker]:
        """Run the broker, which reads keys only from where it is told that it may."""
        before = os.environ.get("JAVA_TOOL_OPTIONS")
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.keys_url}"
        os.environ["JAVA_TOOL_OPTIONS"] = f"{before or ''} {allowed}".strip()
        try:
            self.broker.start()
        finally:
            os.environ["JAVA_TOOL_OPTIONS"] = before or ""
        try:
            yield self
        finally:
            self.broker.stop()
