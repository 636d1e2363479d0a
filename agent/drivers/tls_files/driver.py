# SPDX-License-Identifier: Apache-2.0
"""Connections of clients by TLS, with the certificate that lies in files now.

Whoever renews a certificate writes its files one after the other. So files that do not fit each other leave the last
good certificate in force, and are looked at again with a later connection.
"""

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

log = structlog.get_logger(plane="api")

LOOK_S = 1.0
PARTS = ("certFile", "keyFile", "clientCAFile")


class TlsFiles:
    """`key` is the setting that names the files. The first look raises OSError where they cannot be used."""

    def __init__(self, certificate: str, private_key: str, clients: str, now_s: Callable[[], float], key: str) -> None:
        self._paths = (certificate, private_key, clients)
        self._now_s = now_s
        self._key = key
        self._looked_s = now_s()
        self._seen = self._stamps()
        self._told = ""
        self._context = self._load()

    def wrap(self, client: socket.socket) -> "TlsClient":
        """Of a connection that was just taken. Raises OSError."""
        self._look()
        wrapped = self._context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
        return TlsClient(wrapped, is_asked=bool(self._paths[2]))

    def _look(self) -> None:
        now_s = self._now_s()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        seen = self._stamps()
        if seen == self._seen:
            return
        try:
            self._context = self._load()
        except OSError as error:
            if str(error) != self._told:
                log.error("certificate_not_renewed", error=str(error))
            self._told = str(error)
            return
        self._seen, self._told = seen, ""
        log.info("certificate_renewed", path=self._paths[0])

    def _stamps(self) -> tuple[object, ...]:
        return tuple(_stamp(Path(path)) for path in self._paths if path)

    def _load(self) -> ssl.SSLContext:
        certificate, private_key, clients = self._paths
        for part, path in zip(PARTS, self._paths, strict=True):
            if path:
                _readable(Path(path), f"{self._key}.{part}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(certificate, private_key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            text = f"{certificate} and {private_key} are no certificate in PEM with its key: {_reason(error)}"
            raise OSError(f"{self._key}: {text}") from error
        if clients:
            try:
                context.load_verify_locations(clients)
            except ssl.SSLError as error:
                text = f"{clients} has no certificates in PEM: {_reason(error)}"
                raise OSError(f"{self._key}.clientCAFile: {text}") from error
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


class TlsClient:
    """As a socket that does not block. `is_known`: its certificate is of the authority, where one is asked for."""

    def __init__(self, wrapped: ssl.SSLSocket, *, is_asked: bool) -> None:
        self._socket = wrapped
        self._is_asked = is_asked

    def fileno(self) -> int:
        return self._socket.fileno()

    def recv(self, size: int) -> bytes:
        try:
            return self._socket.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def send(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    @property
    def is_known(self) -> bool:
        return not self._is_asked or self._socket.getpeercert(binary_form=True) is not None

    def close(self) -> None:
        # A last word shows the client that nothing was cut off; the answer to it does not matter.
        with suppress(OSError, ValueError):
            self._socket.unwrap()
        self._socket.close()


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _readable(path: Path, key: str) -> None:
    try:
        with path.open("rb"):
            return
    except OSError as error:
        raise OSError(error.errno, f"{key}: {path} cannot be read: {error.strerror}") from error


def _no_password() -> str:
    raise ValueError("the key has a password, and kepd has none")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
