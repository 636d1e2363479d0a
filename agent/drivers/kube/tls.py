# SPDX-License-Identifier: Apache-2.0
"""TLS towards an API server, with certificates and keys whose files may change.

Keys that come as content reach OpenSSL through memory-backed files, never through a disk.
Never: shows what is in a key or certificate. While files are half replaced, the last context that worked stays.
"""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from agent.drivers.kube.access import Cluster, Pem, Secret
from agent.drivers.kube.errors import CredentialsFailed


class ClientIdentity(msgspec.Struct, frozen=True):
    certificate: Pem
    key: Pem


Stamp = tuple[int, int, int] | None


def file_stamp(pem: Pem) -> Stamp:
    """Changes when the file does, also when a symlink on the way is swapped. None: content, or no such file."""
    if pem.path is None:
        return None
    try:
        status = pem.path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


class TlsContexts:
    """The context for one cluster. A new one is made when a file or the identity is not what it was."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._made_of: object = None
        self._context: ssl.SSLContext | None = None

    def current(self, identity: ClientIdentity | None) -> ssl.SSLContext:
        """The context to connect with now. Raises CredentialsFailed if there has never been a usable one."""
        pems = [self._cluster.ca] if self._cluster.ca else []
        pems += [identity.certificate, identity.key] if identity else []
        made_of = (identity, [file_stamp(pem) for pem in pems])
        if self._context is not None and made_of == self._made_of:
            return self._context
        try:
            self._context = _context(self._cluster, identity)
        except CredentialsFailed:
            if self._context is None:
                raise
        self._made_of = made_of
        return self._context


def _context(cluster: Cluster, identity: ClientIdentity | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not cluster.is_verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif cluster.ca:
        _load_ca(context, cluster.ca)
    else:
        context.load_default_certs()
    if identity:
        _load_identity(context, identity)
    return context


def _load_ca(context: ssl.SSLContext, ca: Pem) -> None:
    try:
        # Comments beside the certificates may be in any language; within one nothing but ASCII is right.
        text = pem_content(ca).decode("ascii", "replace").replace("\ufffd", "?")
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise CredentialsFailed(f"{ca.where}: holds no certificate; expected PEM, BEGIN CERTIFICATE") from error


def _load_identity(context: ssl.SSLContext, identity: ClientIdentity) -> None:
    both = pem_content(identity.certificate) + b"\n" + pem_content(identity.key)
    try:
        with _memory_file(both) as path:
            # Without a password callback OpenSSL would ask on the terminal for the one of an encrypted key.
            context.load_cert_chain(path, password=lambda: b"")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise CredentialsFailed(
            f"{identity.key.where}: certificate and key cannot be used together; expected a PEM certificate "
            "and its PEM key without a password"
        ) from error


def pem_content(pem: Pem) -> bytes:
    if pem.path is None:
        return pem.content.reveal()
    try:
        return pem.path.read_bytes()
    except OSError as error:
        raise CredentialsFailed(f"{pem.where}: cannot be read: {error.strerror}") from error


@contextmanager
def _memory_file(content: bytes) -> Iterator[str]:
    descriptor = os.memfd_create("kepd-tls", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def identity_of(certificate: bytes, key: bytes, where: str) -> ClientIdentity:
    return ClientIdentity(Pem(where, None, Secret(certificate)), Pem(where, None, Secret(key)))
