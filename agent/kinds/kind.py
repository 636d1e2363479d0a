# SPDX-License-Identifier: Apache-2.0
"""What a kind is: its names, its place in Kubernetes' API, and who carries it out. Each has a file of its own."""

from collections.abc import Callable, Iterable

import msgspec

DEFAULT_NAMESPACE = "default"
Subresource = tuple[str, str, tuple[str, ...]]
"""Its name, the kind of its answer, and what may be done with it."""
POD_PATH = ("spec", "template", "spec")
BY_PODS, BY_SERVICES = "agent.pods.manifest.objects", "agent.services.attach.manifests"
BY_DEVICES = "kepd_devices.manifest.reading"
"""Modules that read kinds from manifests."""


class Kind(msgspec.Struct, frozen=True):
    """`api` is its name in Kubernetes' API; empty for what only kepd has, or what the node shows of itself."""

    plural: str
    singular: str
    short: tuple[str, ...] = ()
    api: str = ""
    has_namespace: bool = True
    group: str = ""
    observed_as: str = ""
    """Kubernetes' kind of what the node shows of itself."""
    also_written: tuple[str, ...] = ()
    """Older kinds of manifests that mean the same."""
    read_by: str = ""
    """The module whose `reading_for` reads it from manifests, where a plane carries it out."""
    faults: Callable[[dict[str, object]], Iterable[tuple[str, str]]] | None = None
    """What is wrong with one, by path, where no plane carries it out: it is kept and shown."""
    is_made: bool = False
    """kepd makes such objects from others; nobody writes one."""
    is_also_made: bool = False
    """And some are written."""
    is_carried_out: bool = False
    """The node tells a status of what a manifest has of it."""
    pod_path: tuple[str, ...] = ()
    """Where the spec of its pods stands."""
    turn: int = 0
    """A manifest is written after those of a lower one, which it may need."""
    is_in_all: bool = False
    """`kubectl get all` shows it."""
    subresources: tuple[Subresource, ...] = ()
    is_of_each_daemon: bool = False
    """Where several run on a node, each has some."""
    module: str = ""
    """Its file; the registry says which."""

    @property
    def words(self) -> tuple[str, ...]:
        return (self.plural, self.singular, *self.short)

    @property
    def written_as(self) -> str:
        """Its name in manifests; empty for what is in none."""
        return (self.api or self.observed_as) if self.read_by or self.faults is not None else ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def folder(self) -> str:
        return self.module.rpartition(".")[0].rpartition(".")[2]


class Named(msgspec.Struct, frozen=True):
    """An object as names see it: in full, and what else it may be called; several such words have spaces between."""

    namespace: str
    name: str
    short: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def proxy_of(kind: str) -> Subresource:
    return "proxy", kind, ("create", "delete", "get", "patch", "update")


def status_of(kind: str) -> Subresource:
    return "status", kind, ("get", "patch", "update")


def no_faults(_made: dict[str, object]) -> Iterable[tuple[str, str]]:
    """Of a kind that says nothing that has to be carried out."""
    return ()
