# SPDX-License-Identifier: Apache-2.0
"""A throw-away certificate authority, made with the `openssl` program.

Owns: a directory with ca.crt, server.crt for the loopback addresses, client.crt for user `kepd`, and their keys.
"""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Certificates", "make_certificates", "renew_server"]

NAMES = "subjectAltName=IP:127.0.0.1,IP:::1,DNS:localhost,DNS:kubernetes.default.svc"
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")


@dataclass(frozen=True)
class Certificates:
    """Where they are."""

    directory: Path

    @property
    def ca(self) -> Path:
        return self.directory / "ca.crt"

    @property
    def client_certificate(self) -> Path:
        return self.directory / "client.crt"

    @property
    def client_key(self) -> Path:
        return self.directory / "client.key"

    def server_context(self) -> ssl.SSLContext:
        """For a server that takes client certificates of this authority, and clients without one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.directory / "server.crt", self.directory / "server.key")
        context.load_verify_locations(self.ca)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context


SIGNED = ("-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE")


def renew_server(certificates: Certificates) -> None:
    """Another certificate and key, of the same authority."""
    _openssl(certificates.directory, "server", "kube-apiserver", *SIGNED, "-addext", NAMES)


def make_certificates(directory: Path, client: str = "kepd", also: str = "") -> Certificates:
    """A new authority in `directory`. `also`: more names of the server, as openssl takes them."""
    _openssl(directory, "ca", "kepd-test-ca", "-addext", "keyUsage=critical,keyCertSign,digitalSignature")
    _openssl(directory, "server", "kube-apiserver", *SIGNED, "-addext", f"{NAMES},{also}".rstrip(","))
    _openssl(directory, "client", client, *SIGNED, "-addext", "extendedKeyUsage=clientAuth")
    return Certificates(directory)


def _openssl(directory: Path, name: str, common_name: str, *more: str) -> None:
    command = ("openssl", "req", "-x509", *NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.crt")
    subprocess.run((*command, "-subj", f"/CN={common_name}", *more), cwd=directory, check=True, capture_output=True)
