# SPDX-License-Identifier: Apache-2.0
"""How to reach an API server and as whom, as values; read from a kubeconfig or from the files of a service account.

Never: connects. Secrets are wrapped so that no repr, message or log line can show them; files that rotate stay paths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from agent.drivers.kube.errors import AccessInvalid
from agent.model.finding import shown
from agent.model.text.redaction import Hidden

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


Secret = Hidden[bytes]
NO_SECRET: Secret = Hidden(b"")


class Pem(msgspec.Struct, frozen=True):
    """A certificate or key: a file that may rotate, or content. `where` names the field for messages."""

    where: str
    path: Path | None = None
    content: Secret = NO_SECRET


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    servers: tuple[str, ...]
    unasked: tuple[str, ...] = ()
    """Those in whose place `kubernetes.servers` are asked."""
    ca: Pem | None = None
    is_verified: bool = True
    server_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecCommand:
    """A program that hands out credentials. Arguments and environment may hold secrets and are never shown."""

    where: str
    command: str
    api_version: str
    arguments: tuple[str, ...] = field(default=(), repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    install_hint: str = ""
    is_given_cluster: bool = False
    cluster_config: object = None


class User(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks. Nothing set means anonymous; a token wins over an exec plugin, a token file over a token."""

    where: str = ""
    token: Secret = NO_SECRET
    token_file: Path | None = None
    certificate: Pem | None = None
    key: Pem | None = None
    plugin: ExecCommand | None = None


class KubeAccess(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `source` is what a user would look at: a file, or the service account's directory. `context` is what
    was chosen there; empty = the file's own."""

    source: str
    context: str = ""
    cluster: Cluster
    user: User = User()
    compresses: bool = True

    def through(self, servers: Sequence[str]) -> "KubeAccess":
        """The same by other servers (`kubernetes.servers`); an empty list changes nothing."""
        if not servers:
            return self
        checked = tuple(checked_server(server, "kubernetes.servers") for server in servers)
        return replace(self, cluster=replace(self.cluster, servers=checked, unasked=self.cluster.servers))


def checked_server(url: str, where: str) -> str:
    """A server's address without a slash at its end. Raises AccessInvalid if it is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), -1
    if parts.scheme not in ("https", "http") or not parts.hostname or port == -1 or port == 0:
        # Not shown in full: somebody may have put a password in front of the host.
        told = shown(url.rpartition("@")[2])
        raise AccessInvalid(
            f"{where}: {told} is not a server address; expected https://HOST:PORT, IPv6 hosts in brackets"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise AccessInvalid(f"{where}: an address has no user, query or fragment; expected https://HOST:PORT")
    return url.rstrip("/")


def in_cluster(environment: Mapping[str, str], directory: Path = SERVICE_ACCOUNT) -> KubeAccess:
    """The access every pod is given. The address in it is a ClusterIP: a services plane names servers of its own."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise AccessInvalid(
            "KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set: this process runs in no cluster; "
            "name a file in kubernetes.kubeconfig"
        )
    token, ca = directory / "token", directory / "ca.crt"
    for path in (token, ca):
        if not path.exists():
            raise AccessInvalid(f"{path}: missing; the pod needs a service account with its token mounted")
    bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
    server = checked_server(f"https://{bracketed}:{port}", "KUBERNETES_SERVICE_HOST")
    return KubeAccess(
        source=str(directory),
        cluster=Cluster(servers=(server,), ca=Pem(str(ca), ca)),
        user=User(where=str(directory), token_file=token),
    )
