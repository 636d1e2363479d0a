# SPDX-License-Identifier: Apache-2.0
"""Calls that kepd had before 0.10, and what has their place: objects of every kind are asked for in one way."""

from collections.abc import Mapping

SHOWN = {
    "CriProxyService/ListHolds": "holds", "DeviceService/ListCdi": "cdi", "DeviceService/ListClaims": "claims",
    "DeviceService/ListDevices": "devices", "DeviceService/ListDrivers": "drivers", "DnsService/GetDns": "dns",
    "ImageService/ListImages": "images", "ImageService/ListMirrors": "mirrors", "ImageService/ListPullHolds": "holds",
    "ImageService/ListPulls": "pulls", "ImageService/WatchImagePulls": "pulls", "NodeService/ListEvents": "events",
    "NodeService/ListFeatures": "features", "NodeService/ListFilesystems": "filesystems",
    "NodeService/ListPlanes": "planes",
    "NodeService/WatchEvents": "events", "PodService/GetPod": "pods", "PodService/ListCheckpoints": "checkpoints",
    "PodService/ListContainers": "containers", "PodService/ListPods": "pods", "PodService/WatchPods": "pods",
    "ServiceProxyService/ListEndpoints": "endpoints", "ServiceProxyService/ListServices": "services",
    "ServiceProxyService/WatchServices": "services",
}  # fmt: skip
RENAMED = {
    "KindService/DescribeObject": "Describe", "KindService/ListKinds": "ListKinds", "KindService/ListRows": "Table",
    "KindService/WatchRows": "WatchTable", "ObjectService/ApplyObjects": "Apply",
    "ObjectService/DeleteObject": "Delete", "PodService/ApplyManifest": "Apply",
}  # fmt: skip


def _verb(old: str) -> str:
    name = old.partition("/")[2]
    return next((verb for verb in ("Watch", "Get") if name.startswith(verb) and old != "DnsService/GetDns"), "List")


INSTEAD: Mapping[str, str] = {
    **{f"/kepd.v1.{old}": f'ObjectService/{_verb(old)} with kind "{kind}"' for old, kind in SHOWN.items()},
    **{f"/kepd.v1.{old}": f"ObjectService/{new}" for old, new in RENAMED.items()},
}
"""By their paths."""
