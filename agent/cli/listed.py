# SPDX-License-Identifier: Apache-2.0
"""The list of each kind, imported when it is asked for: most of what a short command costs is its imports."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agent.cli.kinds import Kind
from agent.cli.table import Listing

if TYPE_CHECKING:
    from agent.cli.client import Client

AnyListing = Listing[Any]

LISTS = {
    "nodes": ("listings", "list_nodes"),
    "planes": ("listings", "list_planes"),
    "filesystems": ("listings", "list_filesystems"),
    "features": ("listings", "list_features"),
    "pods": ("listings", "list_pods"),
    "deployments": ("workload_listings", "list_workloads"),
    "daemonsets": ("workload_listings", "list_workloads"),
    "jobs": ("workload_listings", "list_workloads"),
    "containers": ("listings", "list_containers"),
    "checkpoints": ("listings", "list_checkpoints"),
    "images": ("image_listings", "list_images"),
    "pulls": ("image_listings", "list_pulls"),
    "holds": ("proxy_listings", "list_holds"),
    "mirrors": ("image_listings", "list_mirrors"),
    "services": ("service_listings", "list_services"),
    "endpoints": ("service_listings", "list_endpoints"),
    "rules": ("service_listings", "list_rules"),
    "devices": ("device_listings", "list_devices"),
    "claims": ("device_listings", "list_claims"),
    "drivers": ("device_listings", "list_drivers"),
    "cdi": ("device_listings", "list_cdi"),
    "dns": ("dns_listings", "list_dns"),
    "proxy": ("proxy_listings", "list_proxy"),
    "events": ("listings", "list_events"),
}


def listed(daemon: "Client", kind: Kind, *, with_objects: bool = False, is_wide: bool = False) -> AnyListing:
    """All objects of a kind; `with_objects`: with what only programs read; `is_wide`: with what costs more to find."""
    if kind.plural not in LISTS or (kind.plural == "services" and with_objects):
        from agent.cli.object_listings import list_objects, manifests_of

        if kind.plural not in LISTS:
            return list_objects(daemon, kind)
    module, name = LISTS[kind.plural]
    make = getattr(import_module(f"agent.cli.{module}"), name)
    if with_objects and kind.plural == "pods":
        found: AnyListing = make(daemon, with_spec=True)
    elif with_objects and kind.plural == "services":
        found = make(daemon, manifests_of(daemon, kind))
    elif kind.plural == "filesystems":
        found = make(daemon, with_use=with_objects or is_wide)
    elif kind.plural in ("deployments", "daemonsets", "jobs"):
        found = make(daemon, kind)
    else:
        found = make(daemon)
    return found
