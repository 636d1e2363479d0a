# SPDX-License-Identifier: Apache-2.0
"""All credentials that are tried for a pull, in order: the pod's secrets, the node's file, the providers.

What could not be read is a note, not a failure, unless the kubelet's way is asked for. A provider that fails never
fails a pull: the pull goes on without it and the failure is reported.
Source of behaviour: kubernetes `pkg/credentialprovider/plugin`.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import structlog

from agent.images.access.dockerconfig import AuthEntry, ConfigInvalid, entries_for, read_config_file, secret_ring
from agent.images.access.match_key import is_match
from agent.images.access.provider_config import Provider
from agent.images.access.provider_wire import AnswerInvalid, ProviderCache, decode_answer, encode_request
from agent.images.queue.backoff import BackoffTable
from agent.images.queue.errors import BackoffCurve
from agent.images.run.plugin_process import PluginFailed, run_plugin
from agent.images.view.texts import Sentence, provider_failed, secrets_missing
from agent.model.clock import Clock
from agent.model.images.credential import Credential
from agent.model.images.pull import PullRequest

log = structlog.get_logger(plane="images")

KEPT_S = 300.0
LARGEST_FILE = 4 << 20
LEGACY = ".dockercfg"
LIMIT_S = 60.0
SUFFIXES = (".json", ".yaml", ".yml")
FAILURE_CURVE = BackoffCurve(start_s=1, factor=2, cap_s=60)
# What a plugin may need to find its cloud and its files; nothing else of our environment is its business.
PASSED_ON = (
    "PATH", "HOME", "LANG", "TMPDIR", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
Observer = Callable[[str, float, bool], None]


class ProvidedCredentials(msgspec.Struct, frozen=True):
    """Entries of all providers in their order, and who failed (name, why)."""

    entries: tuple[tuple[AuthEntry, ...], ...] = ()
    failures: tuple[tuple[str, str], ...] = ()


class Providers:
    """All configured plugins. `observe` hears (provider, seconds, failed) of every call."""

    def __init__(
        self,
        providers: Sequence[Provider],
        folder: Path,
        environment: Mapping[str, str],
        *,
        clock: Clock,
        observe: Observer | None = None,
    ) -> None:
        self._folder = folder
        self._environment = {name: environment[name] for name in PASSED_ON if name in environment}
        self._clock = clock
        self._observe = observe or (lambda _provider, _seconds, _failed: None)
        self._states = [_State(provider) for provider in providers]

    def __len__(self) -> int:
        return len(self._states)

    async def find(self, repo: str) -> ProvidedCredentials:
        """`repo`: the image without tag."""
        entries: list[tuple[AuthEntry, ...]] = []
        failures: list[tuple[str, str]] = []
        for state in self._states:
            if not any(is_match(pattern, repo) for pattern in state.provider.patterns):
                continue
            try:
                entries.append(await self._ask(state, repo))
            except PluginFailed as error:
                failures.append((state.provider.name, str(error)))
        return ProvidedCredentials(tuple(entries), tuple(failures))

    async def _ask(self, state: "_State", repo: str) -> tuple[AuthEntry, ...]:
        async with state.lock(repo):
            now_s = self._clock.now_s()
            cached = state.cache.find(repo, now_s)
            if cached is not None and not cached.is_due(now_s):
                return cached.entries
            if (pause := state.backoff.waiting("", now_s)) is not None:
                if cached is not None:
                    return cached.entries
                raise PluginFailed(pause.text)
            try:
                return await self._call(state, repo)
            except PluginFailed as error:
                state.backoff.fail("", self._clock.now_s(), FAILURE_CURVE, text=str(error))
                log.warning("credential_provider_failed", provider=state.provider.name, error=str(error))
                if cached is not None:
                    return cached.entries
                raise

    async def _call(self, state: "_State", repo: str) -> tuple[AuthEntry, ...]:
        provider = state.provider
        began_s = self._clock.now_s()
        has_failed = True
        try:
            output = await run_plugin(
                (str(self._folder / provider.name), *provider.args),
                encode_request(provider, repo),
                {**self._environment, **dict(provider.env)},
                LIMIT_S,
                [value for _name, value in provider.env],
            )
            answer = decode_answer(provider, output)
            has_failed = False
        except AnswerInvalid as error:
            raise PluginFailed(str(error)) from None
        finally:
            self._observe(provider.name, self._clock.now_s() - began_s, has_failed)
        state.backoff.reset("")
        return state.cache.keep(repo, answer, self._clock.now_s())


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


def provider_documents(place: Path) -> list[tuple[str, bytes]]:
    """The configuration files of a file or folder, by name and content, in byte order. Raises OSError."""
    if not place.is_dir():
        return [(str(place), place.read_bytes())]
    files = sorted(place.iterdir(), key=lambda file: file.name.encode())
    return [(str(file), file.read_bytes()) for file in files if file.suffix in SUFFIXES and file.is_file()]


class _State:
    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.cache = ProviderCache(provider)
        self.backoff = BackoffTable()
        self._locks: dict[str, asyncio.Lock] = {}

    def lock(self, repo: str) -> asyncio.Lock:
        """One call at a time per image; free locks are dropped now and then."""
        if len(self._locks) > 256:
            self._locks = {name: lock for name, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(repo, asyncio.Lock())
