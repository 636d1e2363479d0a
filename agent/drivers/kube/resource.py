# SPDX-License-Identifier: Apache-2.0
"""What can be followed, and the news of following it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec.structs import replace

from agent.drivers.kube.errors import KubeError
from agent.model.kube_objects import (
    ApiEvent,
    ClaimObject,
    EndpointSlice,
    NodeMetadata,
    NodeObject,
    Pod,
    Service,
    ServiceCidr,
    SliceObject,
    WorkloadObject,
)

T = TypeVar("T")

# How what is changed of an object may be said.
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


class ObjectKey(msgspec.Struct, frozen=True):
    """An object among those of its kind; `namespace` is empty for kinds that have none."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Resource(msgspec.Struct, Generic[T], frozen=True):
    """A set of objects on the server. `namespace` None means all of them, or a kind without namespaces.
    `is_metadata_only`: the server is asked to leave out the rest; it may send it all the same."""

    group: str
    version: str
    plural: str
    kind: type[T]
    namespace: str | None = None
    field_selector: str = ""
    label_selector: str = ""
    is_metadata_only: bool = False

    def narrowed(
        self, *, namespace: str | None = None, field_selector: str = "", label_selector: str = ""
    ) -> "Resource[T]":
        return replace(
            self,
            namespace=namespace or self.namespace,
            field_selector=field_selector or self.field_selector,
            label_selector=label_selector or self.label_selector,
        )

    @property
    def path(self) -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{quote(self.namespace, safe='')}" if self.namespace else ""
        return f"{root}{scope}/{self.plural}"

    def object_path(self, name: str, subresource: str = "") -> str:
        return f"{self.path}/{quote(name, safe='')}" + (f"/{subresource}" if subresource else "")

    def query(self, options: Mapping[str, str]) -> str:
        selectors = {"fieldSelector": self.field_selector, "labelSelector": self.label_selector}
        return urlencode({key: value for key, value in {**selectors, **options}.items() if value})

    def __str__(self) -> str:
        name = f"{self.plural}.{self.group}" if self.group else self.plural
        return f"{name} in {self.namespace}" if self.namespace else name


SERVICES = Resource("", "v1", "services", Service)
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", EndpointSlice)
NODES = Resource("", "v1", "nodes", NodeObject)
NODE_METADATA = Resource("", "v1", "nodes", NodeMetadata, is_metadata_only=True)
PODS = Resource("", "v1", "pods", Pod)
DEPLOYMENTS = Resource("apps", "v1", "deployments", WorkloadObject)
DAEMON_SETS = Resource("apps", "v1", "daemonsets", WorkloadObject)
EVENTS = Resource("events.k8s.io", "v1", "events", ApiEvent)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", ClaimObject)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", SliceObject)
SERVICE_CIDRS = Resource("networking.k8s.io", "v1", "servicecidrs", ServiceCidr)


class ChangeType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Replaced(msgspec.Struct, Generic[T], frozen=True):
    """All there is now; forget everything else, except what `unreadable` names: those exist, but cannot be read."""

    items: list[T]
    resource_version: str
    unreadable: frozenset[ObjectKey] = msgspec.field(default_factory=frozenset)


class Changed(msgspec.Struct, Generic[T], frozen=True):
    """One object. An ADDED one may be known already, and a DELETED one unknown."""

    change: ChangeType
    object: T


class Bookmark(msgspec.Struct, frozen=True):
    """A sign of life: everything up to this version has been delivered."""

    resource_version: str


class Malformed(msgspec.Struct, frozen=True):
    """An object that cannot be read, said once until it changes for the better. `is_gone` = it was deleted."""

    key: ObjectKey
    text: str
    is_gone: bool = False


class Disconnected(msgspec.Struct, frozen=True):
    """No news for now, and why; what was delivered stays true as far as anybody knows."""

    error: KubeError
    retry_in_s: float

    @property
    def reason(self) -> str:
        return f"{self.error}; next try in {self.retry_in_s:.1f} s"


class Resumed(msgspec.Struct, frozen=True):
    """After Disconnected: the server takes up where news stopped. If it no longer can, Replaced follows."""

    resource_version: str


News = Replaced[T] | Changed[T] | Bookmark | Malformed | Disconnected | Resumed
