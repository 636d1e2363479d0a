# SPDX-License-Identifier: Apache-2.0
"""All credentials that are tried for a pull, in order: the pod's secrets, the node's file, the providers.

What could not be read is a note, not a failure, unless the kubelet's way is asked for.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from agent.images.access.dockerconfig import AuthEntry, ConfigInvalid, read_config_file
from agent.images.access.keyring import entries_for, secret_ring
from agent.images.run.providers import Providers
from agent.images.view.texts import Sentence, provider_failed, secrets_missing
from agent.model.clock import Clock
from agent.model.images.credential import Credential
from agent.model.images.pull import PullRequest

log = structlog.get_logger(plane="images")

KEPT_S = 300.0
LARGEST_FILE = 4 << 20
LEGACY = ".dockercfg"


class Lookup(msgspec.Struct, frozen=True):
    """Credentials in the order of trying, and what users should know."""

    credentials: tuple[Credential, ...]
    sentences: tuple[Sentence, ...] = ()


def node_config_paths(configured: str, home: str, kubelet_root: str = "/var/lib/kubelet") -> list[Path]:
    """Where the node's file may be; a configured one is the only one."""
    if configured:
        return [Path(configured)]
    folders = [Path(kubelet_root), Path(), Path(home), Path("/")]
    docker = [Path(kubelet_root) / "config.json", Path("config.json")]
    docker += [Path(home) / ".docker" / "config.json", Path("/.docker/config.json")]
    return [*docker, *(folder / LEGACY for folder in folders)]


class NodeConfig:
    def __init__(self, paths: Sequence[Path], *, clock: Clock) -> None:
        self._paths = paths
        self._clock = clock
        self._read_s: float | None = None
        self._entries: tuple[AuthEntry, ...] = ()

    async def entries(self) -> tuple[AuthEntry, ...]:
        now_s = self._clock.now_s()
        if self._read_s is None or now_s - self._read_s >= KEPT_S:
            self._entries = await asyncio.to_thread(self._load)
            self._read_s = now_s
        return self._entries

    def forget(self) -> None:
        self._read_s = None

    def _load(self) -> tuple[AuthEntry, ...]:
        for path in self._paths:
            try:
                if path.stat().st_size > LARGEST_FILE:
                    raise ConfigInvalid(f"has more than {LARGEST_FILE} bytes")
                return tuple(read_config_file(path.read_bytes(), is_legacy=path.name == LEGACY))
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("node_config_unreadable", file=str(path), error=error.strerror)
            except ConfigInvalid as error:
                log.warning("node_config_unreadable", file=str(path), error=str(error))
        return ()


class CredentialSource:
    def __init__(self, node: NodeConfig, providers: Providers) -> None:
        self._node = node
        self._providers = providers

    async def find(self, repo: str, request: PullRequest, *, is_strict: bool = False) -> Lookup:
        """Everything for one repository. `is_strict`: one unreadable secret raises ConfigInvalid, as with a kubelet."""
        ring = secret_ring(request.secrets, is_strict=is_strict)
        found = entries_for(repo, ring.entries)
        found += entries_for(repo, await self._node.entries())
        sentences: list[Sentence] = []
        missing = (*request.missing_secrets, *(f"{bad.name}: {bad.reason}" for bad in ring.bad))
        if missing:
            sentences.append(secrets_missing(missing))
        answers = await self._providers.find(repo)
        for entries in answers.entries:
            found += entries_for(repo, entries)
        sentences += [provider_failed(name, why) for name, why in answers.failures]
        return Lookup(tuple(found), tuple(sentences))

    def forget(self) -> None:
        self._node.forget()
