# SPDX-License-Identifier: Apache-2.0
"""Lists the hosts that a runtime asks for images of a registry, from containerd's hosts.toml.

Fallbacks happen inside the runtime and count for the written registry.
Source of behaviour: containerd `core/remotes/docker/config/hosts.go`.
"""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import urlsplit

import msgspec

ALL_CAPABILITIES = ("pull", "resolve", "push")
HUB_HOST = "registry-1.docker.io"
EVERYBODY = ""
MOST_BYTES = 64 << 10
_PLAIN = {"server", "host", "capabilities"}


class MirrorHost(msgspec.Struct, frozen=True):
    url: str
    capabilities: tuple[str, ...] = ALL_CAPABILITIES
    is_plain: bool = True
    """The file sets nothing else of it: no certificates, headers or paths."""


class MirrorChain(msgspec.Struct, frozen=True):
    """All hosts for one registry; the last is its own. `source` is the file, empty = none."""

    registry: str
    hosts: tuple[MirrorHost, ...]
    source: str = ""
    problem: str = ""

    @property
    def only_url(self) -> str:
        """Where the runtime asks, if that is the registry itself and nothing else is set of it; else empty."""
        own = self.hosts[-1].url.rstrip("/")
        others = [host for host in self.hosts if host.url.rstrip("/") != own or not host.is_plain]
        if others or self.problem or urlsplit(own).path or urlsplit(own).netloc != _own_name(self.registry):
            return ""
        return own


def folder_names(registry: str) -> tuple[str, ...]:
    """Folders below config_path in which the runtime looks for hosts.toml, in its order."""
    host, colon, port = registry.rpartition(":")
    if colon and port.isdecimal():
        return (f"{host}_{port}_", registry, "_default")
    return (registry, "_default")


def default_chain(registry: str) -> MirrorChain:
    return MirrorChain(registry, (MirrorHost(_own_url(registry)),))


def read_hosts(registry: str, content: bytes, source: str) -> MirrorChain:
    """The chain that a file makes. A file that cannot be read is a problem, and leaves the registry itself."""
    try:
        if len(content) > MOST_BYTES:
            # Names of tables below each other are looked at in pairs.
            raise tomllib.TOMLDecodeError(f"it has {len(content)} bytes; expected at most {MOST_BYTES}")
        document = tomllib.loads(content.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        return MirrorChain(registry, default_chain(registry).hosts, source, f"cannot be read: {error}")
    listed = document.get("host")
    hosts = [_host(url, fields) for url, fields in listed.items()] if isinstance(listed, dict) else []
    server = document.get("server")
    own = _with_scheme(server) if isinstance(server, str) and server else _own_url(registry)
    return MirrorChain(registry, (*hosts, _host(own, document)), source)


def auth_servers(chain: MirrorChain, listed: Collection[str]) -> tuple[str, ...]:
    """To whom credentials of a registry go, one call to the runtime each: only one host fits into a call. The mirrors
    that are listed come first, for the runtime asks them first; `EVERYBODY` where none would be left out. Source:
    containerd `pkg/cri/server/image_pull.go` ParseAuth, which wants an address with a scheme."""
    *mirrors, own = (urlsplit(host.url).netloc for host in chain.hosts)
    others = [host for host in dict.fromkeys(mirrors) if host != own]
    allowed = [host for host in others if host in listed]
    if others and len(allowed) == len(others):
        return (EVERYBODY,)
    return tuple(f"https://{host}" for host in (*allowed, own))


def _host(url: str, fields: object) -> MirrorHost:
    settings: Mapping[str, object] = fields if isinstance(fields, dict) else {}
    capabilities = settings.get("capabilities")
    words = tuple(map(str, capabilities)) if isinstance(capabilities, Sequence) else ALL_CAPABILITIES
    return MirrorHost(_with_scheme(url), words, settings.keys() <= _PLAIN)


def _with_scheme(url: str) -> str:
    return url if urlsplit(url).scheme in ("http", "https") else f"https://{url}"


def _own_url(registry: str) -> str:
    return f"https://{_own_name(registry)}"


def _own_name(registry: str) -> str:
    return HUB_HOST if registry == "docker.io" else registry
