# SPDX-License-Identifier: Apache-2.0
"""What opens the door: a certificate of the door's own authority, and a token for each level of callers.

`openssl` makes the certificates. The authority lasts ten years, for every kubeconfig has it; the certificate lasts one
and is made anew when a third of that is left. Files of private keys and tokens are root's alone.
"""

import asyncio
import hmac
import secrets
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from agent.api.access import LEVEL_NAMES
from agent.drivers.atomic_files import write_file
from agent.model.text.json_text import decode_json
from kepd_door.run.calls import Caller

log = structlog.get_logger(plane="api")

DAY_S = 86400
AUTHORITY_DAYS, CERTIFICATE_DAYS, LEFT_DAYS = 3650, 365, 120
LEVELS = {name: level for level, name in LEVEL_NAMES.items()}
# The organisation of a client's certificate says its level.
GROUPS = {f"kepd:{name}": level for name, level in LEVELS.items()}


class KeysUnusable(OSError):
    """With what is to be done about it."""


class Tokens(msgspec.Struct):
    """By the name of their level."""

    tokens: dict[str, str]


class DoorKeys:
    """Files in `directory`. `clients` names the authorities of clients' certificates, where there are any."""

    def __init__(self, directory: Path, address: str, clients: str) -> None:
        self._directory = directory
        self._host = address.rpartition(":")[0].strip("[]")
        self._clients = clients
        self._tokens: dict[str, str] = {}
        self.context: ssl.SSLContext | None = None
        self.authority = b""

    async def open(self) -> None:
        """Raises KeysUnusable."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        await self.renew()
        self._read_tokens()

    async def renew(self) -> None:
        """What is missing or ends soon."""
        ca, ca_key = self._directory / "authority.pem", self._directory / "authority.key"
        own, own_key = self._directory / "door.pem", self._directory / "door.key"
        if not ca.exists() or not ca_key.exists():
            # It is of no use to whoever knows the new one.
            own.unlink(missing_ok=True)
            await self._make(
                ca,
                ca_key,
                "/CN=kepd",
                AUTHORITY_DAYS,
                [
                    "-x509",
                    "-addext",
                    "basicConstraints=critical,CA:TRUE",
                    "-addext",
                    "keyUsage=critical,keyCertSign,cRLSign",
                ],
            )
        if not own.exists() or not own_key.exists() or await self._ends_soon(own):
            names = ["DNS:localhost", f"DNS:{socket.gethostname()}", "IP:127.0.0.1", "IP:::1"]
            if self._host not in ("", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::"):  # noqa: S104
                names.append(f"IP:{self._host}")
            await self._make(
                own,
                own_key,
                "/CN=kepd-door",
                CERTIFICATE_DAYS,
                [
                    "-x509",
                    "-CA",
                    str(ca),
                    "-CAkey",
                    str(ca_key),
                    "-addext",
                    f"subjectAltName={','.join(names)}",
                    "-addext",
                    "basicConstraints=critical,CA:FALSE",
                    "-addext",
                    "extendedKeyUsage=serverAuth",
                ],
            )
            log.info("door_certificate_made", path=str(own))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(own, own_key)
            if self._clients:
                context.load_verify_locations(self._clients)
                context.verify_mode = ssl.CERT_OPTIONAL
            self.authority = ca.read_bytes()
        except (OSError, ssl.SSLError) as error:
            text = f"{own} or {self._clients or own_key}: {error}; what is removed of {self._directory} is made anew"
            raise KeysUnusable(text) from error
        self.context = context

    async def _make(self, certificate: Path, key: Path, subject: str, days: int, more: Sequence[str]) -> None:
        """Both files appear whole, the key first."""
        places = [path.with_name(f".{path.name}.new") for path in (certificate, key)]
        words = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", subject,
                 "-days", str(days), "-out", str(places[0]), "-keyout", str(places[1]), *more]  # fmt: skip
        if said := await _openssl(words):
            raise KeysUnusable(f"openssl makes no certificate: {said[-300:]}")
        places[1].chmod(0o600)
        places[1].replace(key)
        places[0].replace(certificate)

    async def _ends_soon(self, certificate: Path) -> bool:
        words = ["x509", "-noout", "-checkend", str(LEFT_DAYS * DAY_S), "-in", str(certificate)]
        return bool(await _openssl(words))

    def _read_tokens(self) -> None:
        path = self._directory / "tokens.json"
        found: dict[str, str] = {}
        with suppress(OSError, msgspec.DecodeError):
            found = decode_json(path.read_bytes(), Tokens).tokens
        self._tokens = {name: found.get(name) or secrets.token_urlsafe(32) for name in LEVELS}
        if self._tokens != found:
            write_file(path, msgspec.json.encode(Tokens(self._tokens)))

    def token(self, level: str) -> str:
        return self._tokens[level]

    def caller(self, authorization: str, certificate: dict[str, object] | None) -> Caller | None:
        """Whom a token or a certificate stands for."""
        kind, _, given = authorization.partition(" ")
        if kind.lower() == "bearer" and given:
            # All are compared, so that the time tells nothing.
            said = given.strip().encode(errors="surrogateescape")
            held = [name for name, token in self._tokens.items() if hmac.compare_digest(token.encode(), said)]
            return Caller(f"kepd:{held[0]}", LEVELS[held[0]]) if held else None
        if certificate and not authorization:
            return _caller_of(certificate)
        return None


def _caller_of(certificate: dict[str, object]) -> Caller | None:
    subject = certificate.get("subject") or ()
    parts = [pair for several in subject for pair in several]  # type: ignore[attr-defined]
    name = next((value for key, value in parts if key == "commonName"), "")
    held = [GROUPS[value] for key, value in parts if key == "organizationName" and value in GROUPS]
    return Caller(name[:100], max(held)) if held else None


async def _openssl(words: Sequence[str]) -> str:
    """What it says where it fails, else nothing."""
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(
            "openssl", *words, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        text = (
            "openssl, which makes the door's certificate, is not installed; install it, or leave api.door.address empty"
        )
        raise KeysUnusable(text) from error
    said, _ = await child.communicate()
    return (said.decode(errors="replace").strip() or "it failed") if child.returncode else ""
