# SPDX-License-Identifier: Apache-2.0
"""What `kepctl get deployments`, `daemonsets` and `jobs` list, in kubectl's columns."""

import json
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from agent.cli.client import Client
from agent.cli.kinds import Kind, Named
from agent.cli.kube_objects import labels_of, manifest_object
from agent.cli.object_listings import SERVICE
from agent.cli.plain_rows import age
from agent.cli.table import Column, Columns, Listing
from agent.cli.workload_pods import items, part
from agent.wire.kepd.v1 import object_pb2 as pb

Made = dict[str, Any]


def _made(one: pb.Object) -> Made:
    found: Made = json.loads(one.content)
    return found


def _status(one: pb.Object, name: str) -> int:
    return int(part(_made(one), "status").get(name, 0))


def _replicas(one: pb.Object) -> str:
    return str(part(_made(one), "spec").get("replicas", 1))


def _images(one: pb.Object) -> str:
    return ",".join(str(each.get("image", "")) for each in items(_made(one), "spec", "template", "spec", "containers"))


def job_state(made: Made) -> str:
    """The word of its condition; Running where it has none yet."""
    held = (str(one.get("type")) for one in items(made, "status", "conditions") if one.get("status") == "True")
    return next(held, "Running")


def _completions(one: pb.Object) -> str:
    spec = part(_made(one), "spec")
    succeeded = _status(one, "succeeded")
    if spec.get("completions") is None and spec.get("parallelism") is not None:
        return f"{succeeded}/1 of {spec['parallelism']}"
    return f"{succeeded}/{spec.get('completions', 1)}"


def _duration(one: pb.Object) -> str:
    status = part(_made(one), "status")
    if not status.get("startTime"):
        return ""
    end = datetime.fromisoformat(status["completionTime"]) if status.get("completionTime") else datetime.now(UTC)
    seconds = int((end - datetime.fromisoformat(status["startTime"])).total_seconds())
    return f"{seconds // 60}m{seconds % 60}s" if seconds >= 60 else f"{seconds}s"


def created_at(made: object) -> Timestamp:
    """Zero for what does not say it."""
    stamp, text = Timestamp(), part(made, "metadata").get("creationTimestamp")
    if text:
        stamp.FromJsonString(str(text))
    return stamp


AGE: Column[pb.Object] = Column("AGE", lambda one: age(created_at(_made(one))))
NAMES: Columns[pb.Object] = (
    Column("NAMESPACE", lambda one: one.namespace or "-"),
    Column("NAME", lambda one: one.name),
)
WIDE: Columns[pb.Object] = (
    Column("IMAGES", _images, wide=True),
    Column("SOURCE", lambda one: one.source, wide=True),
)
COLUMNS: dict[str, Columns[pb.Object]] = {
    "Deployment": (
        *NAMES,
        Column("READY", lambda one: f"{_status(one, 'readyReplicas')}/{_replicas(one)}"),
        Column("UP-TO-DATE", lambda one: str(_status(one, "updatedReplicas"))),
        Column("AVAILABLE", lambda one: str(_status(one, "availableReplicas"))),
        AGE,
        *WIDE,
    ),
    "DaemonSet": (
        *NAMES,
        Column("DESIRED", lambda one: str(_status(one, "desiredNumberScheduled"))),
        Column("CURRENT", lambda one: str(_status(one, "currentNumberScheduled"))),
        Column("READY", lambda one: str(_status(one, "numberReady"))),
        Column("UP-TO-DATE", lambda one: str(_status(one, "updatedNumberScheduled"))),
        Column("AVAILABLE", lambda one: str(_status(one, "numberAvailable"))),
        AGE,
        *WIDE,
    ),
    "Job": (
        *NAMES,
        Column("STATUS", lambda one: job_state(_made(one))),
        Column("COMPLETIONS", _completions),
        Column("FAILED", lambda one: str(_status(one, "failed"))),
        Column("DURATION", _duration),
        AGE,
        *WIDE,
    ),
}


def list_workloads(daemon: Client, kind: Kind) -> Listing[pb.Object]:
    answer = daemon.call(f"{SERVICE}/ListObjects", pb.ListObjectsRequest(kind=kind.api), pb.ListObjectsResponse)
    return Listing(
        kind.api, answer.objects, COLUMNS[kind.api],
        lambda one: f"{kind.singular}/{Named(one.namespace, one.name).key}",
        f"no {kind.plural}",
        named=lambda one: Named(one.namespace, one.name),
        labels=lambda one: labels_of(manifest_object(one)),
        objects=lambda objects: [manifest_object(one) for one in objects],
    )  # fmt: skip
