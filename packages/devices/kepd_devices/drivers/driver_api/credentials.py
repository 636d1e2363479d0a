# SPDX-License-Identifier: Apache-2.0
"""Who may ask the API for drivers: a certificate of its own, and a kubeconfig with a token for each driver.

Both stay the same over restarts, as drivers read their file once. The program openssl makes the certificate.
"""

import base64
import hmac
import json
import secrets
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

from agent.drivers.atomic_files import write_file

SECRET_BYTES, DAYS, RENEW_S = 32, 3650, 30 * 86400
DIRECTORY_MODE = 0o700
NAMES = "subjectAltName=IP:127.0.0.1,IP:::1,DNS:localhost"


class Credentials(msgspec.Struct, frozen=True):
    """`drivers` has the driver of each token; `authority` is the certificate as text."""

    drivers: Mapping[str, str]
    context: ssl.SSLContext
    authority: bytes

    def driver_of(self, token: str) -> str:
        """Nothing for a token that is none; compared in a time that tells nothing of it."""
        found = ""
        for known, driver in self.drivers.items():
            if hmac.compare_digest(known.encode(), token.encode()):
                found = driver
        return found


def make_credentials(state: Path, drivers: Sequence[str]) -> Credentials:
    """Blocking. Raises OSError."""
    state.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
    secret = state / "secret"
    if not secret.exists() or len(secret.read_bytes()) != SECRET_BYTES:
        write_file(secret, secrets.token_bytes(SECRET_BYTES))
    key = secret.read_bytes()
    tokens = {hmac.new(key, one.encode(), sha256).hexdigest(): one for one in drivers}
    certificate, private = state / "server.crt", state / "server.key"
    if not _is_good(certificate, private):
        _make_certificate(certificate, private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, private)
    return Credentials(tokens, context, certificate.read_bytes())


def write_kubeconfigs(folder: Path, address: str, credentials: Credentials) -> None:
    """One for each driver, and none of another. Blocking. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
    wanted = {f"{driver}.kubeconfig": token for token, driver in credentials.drivers.items()}
    for path in folder.glob("*.kubeconfig"):
        if path.name not in wanted:
            path.unlink()
    for name, token in wanted.items():
        authority = base64.b64encode(credentials.authority).decode()
        cluster = {"server": f"https://{address}", "certificate-authority-data": authority}
        document = {
            "apiVersion": "v1", "kind": "Config", "current-context": "kepd",
            "clusters": [{"name": "kepd", "cluster": cluster}],
            "users": [{"name": "kepd", "user": {"token": token}}],
            "contexts": [{"name": "kepd", "context": {"cluster": "kepd", "user": "kepd"}}],
        }  # fmt: skip
        write_file(folder / name, json.dumps(document).encode())


def _is_good(certificate: Path, private: Path) -> bool:
    """There, and for a while yet."""
    if not certificate.exists() or not private.exists():
        return False
    asked = ("openssl", "x509", "-checkend", str(RENEW_S), "-noout", "-in", str(certificate))
    return _run(asked, check=False)


def _make_certificate(certificate: Path, private: Path) -> None:
    private.touch(mode=0o600)
    private.chmod(0o600)
    subject = ("-subj", "/CN=kepd", "-addext", NAMES, "-days", str(DAYS))
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(private))
    _run(("openssl", "req", "-x509", *key, *subject, "-out", str(certificate)), check=True)


def _run(command: Sequence[str], *, check: bool) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError as error:
        raise OSError("the program openssl is not there, which makes the certificate of devices.api") from error
    if check and done.returncode:
        raise OSError(f"openssl makes no certificate: {done.stderr.strip()[-300:]}")
    return done.returncode == 0
