# SPDX-License-Identifier: Apache-2.0
"""How many pods of a workload there are to be, as an object of its own."""

from typing import Any

Object = dict[str, Any]


def scale_object(made: Object) -> Object:
    metadata = {
        key: made["metadata"].get(key) for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    }
    labels = ((made.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": (made.get("spec") or {}).get("replicas", 1)},
        "status": {
            "replicas": (made.get("status") or {}).get("replicas", 0),
            "selector": ",".join(f"{name}={value}" for name, value in labels.items()),
        },
    }
