# SPDX-License-Identifier: Apache-2.0
"""Pods as manifests describe them.

Hashes, by which changes are found, are of the decoded values, so that comments, key order and defaults written out
change nothing.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import msgspec

from agent.model.pods.container_fields import Container, Resources
from agent.model.pods.fields import PodFields

DEFAULT_GRACE_S = 30
FNV_OFFSET = 0x6C62272E07BB014262B821756295C58D
FNV_PRIME = 0x0000000001000000000000000000013B
MASK_128 = (1 << 128) - 1
HASH_LENGTH = 32
CONTAINER_HASH_LENGTH = 16


class ContainerKind(StrEnum):
    """What a container is to its pod. A sidecar is an init container that always restarts; no manifest has an ephemeral
    one."""

    MAIN = "main"
    SIDECAR = "sidecar"
    INIT = "init"
    EPHEMERAL = "ephemeral"


class ContainerSpec(msgspec.Struct, frozen=True):
    kind: ContainerKind
    fields: Container

    @property
    def name(self) -> str:
        return self.fields.name

    @property
    def image(self) -> str:
        return self.fields.image


class PodOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The Deployment, DaemonSet or Job that a pod was made for; `revision` names the template it was made of, and
    `created_s` is since when the owner has been known, in wall time."""

    kind: str
    namespace: str
    name: str
    uid: str
    revision: str
    created_s: float = 0.0

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.namespace, self.name


class GivenMetadata(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What a manifest says of its pod for others than kepd, who is shown it as it is."""

    generate_name: str = ""
    owner_references: tuple[dict[str, Any], ...] = ()
    finalizers: tuple[str, ...] = ()
    generation: int = 1


NOTHING_GIVEN = GivenMetadata()


@dataclass(frozen=True, kw_only=True)
class PodSpec:
    """One pod. `hash` changes with what its manifest says; `source` is its place in `file`."""

    namespace: str
    name: str
    uid: str
    hash: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    spec: PodFields = field(default_factory=PodFields)
    file: str = ""
    source: str = ""
    has_own_uid: bool = False
    manifest_name: str = ""
    """Without the node's suffix, which `name` has."""
    owner: PodOwner | None = None
    given: GivenMetadata = NOTHING_GIVEN

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def full_name(self) -> str:
        return f"{self.name}_{self.namespace}({self.uid})"

    @property
    def version(self) -> tuple[str, str]:
        """Two that are equal here need not replace each other."""
        return self.uid, self.hash

    @property
    def grace_s(self) -> int:
        """A negative one reads as 1."""
        given = self.spec.termination_grace_period_seconds
        return given if given >= 0 else 1

    @cached_property
    def containers(self) -> tuple[ContainerSpec, ...]:
        """Init containers and sidecars in their order, then mains in theirs."""
        inits = (
            ContainerSpec(ContainerKind.SIDECAR if one.is_sidecar else ContainerKind.INIT, one)
            for one in self.spec.init_containers
        )
        return (*inits, *(ContainerSpec(ContainerKind.MAIN, one) for one in self.spec.containers))

    def path_of(self, container: ContainerSpec) -> str:
        """Where the manifest has it; an ephemeral one stands in none."""
        for field_name, listed in (("initContainers", self.spec.init_containers), ("containers", self.spec.containers)):
            for number, one in enumerate(listed):
                if one.name == container.name:
                    return f"spec.{field_name}[{number}]"
        return f"container {container.name}"

    @cached_property
    def by_name(self) -> Mapping[str, ContainerSpec]:
        return {one.name: one for one in self.containers}

    @cached_property
    def notes(self) -> Mapping[str, str]:
        return dict(self.annotations)


def static_uid(content: str, node: str, path: str) -> str:
    """Identity of a pod from a file: the same as long as content, node and path are."""
    digest = FNV_OFFSET
    # The path has the bytes that are no UTF-8 as os.fsdecode writes them.
    for byte in f"{content}host:{node}file:{path}".encode("utf-8", "surrogateescape"):
        digest = ((digest ^ byte) * FNV_PRIME) & MASK_128
    return f"{digest:032x}"


def content_hash(content: str) -> str:
    """What a sandbox remembers of its manifest."""
    return hashlib.sha256(content.encode()).hexdigest()[:HASH_LENGTH]


def container_hash(container: Container) -> str:
    """What a container remembers of its part; resources can change without a restart."""
    resources = container.resources
    given = Resources(
        claims=resources.claims, limits={name: it for name, it in resources.limits.items() if "/" in name}
    )
    fixed = msgspec.structs.replace(container, resources=given)
    return hashlib.sha256(msgspec.json.encode(fixed, order="sorted")).hexdigest()[:CONTAINER_HASH_LENGTH]
