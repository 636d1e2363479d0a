# SPDX-License-Identifier: Apache-2.0
"""The columns of `get pods`, and how a pod may be called; the same whoever decoded the pod."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent.cli.kinds import Named
from agent.cli.plain_rows import age
from agent.cli.table import Column, Columns, Listing

if TYPE_CHECKING:
    from agent.wire.kepd.v1 import pod_pb2


def _counted(pod: "pod_pb2.Pod") -> "list[pod_pb2.Container]":
    return [one for one in pod.containers if one.kind not in ("init", "ephemeral")]


POD_COLUMNS: "Columns[pod_pb2.Pod]" = (
    Column("NAMESPACE", lambda pod: pod.namespace),
    Column("NAME", lambda pod: pod.name),
    Column("READY", lambda pod: f"{sum(one.ready for one in _counted(pod))}/{len(_counted(pod))}"),
    Column("STATUS", lambda pod: pod.status or pod.phase),
    Column("RESTARTS", lambda pod: str(sum(one.restart_count for one in pod.containers))),
    Column("AGE", lambda pod: age(pod.created_at)),
    Column("IP", lambda pod: pod.ip),
    Column("DNS", lambda pod: pod.name_servers, wide=True),
    Column("UID", lambda pod: pod.uid, wide=True),
    Column("MESSAGE", lambda pod: pod.message, wide=True),
)


def pod_listing(pods: "Sequence[pod_pb2.Pod]") -> "Listing[pod_pb2.Pod]":
    """Without what makes Kubernetes objects of them."""
    return Listing(
        "Pod",
        pods,
        POD_COLUMNS,
        lambda pod: f"pod/{pod.namespace}/{pod.name}",
        "no pods; put a Pod manifest into the manifest directory",
        named=lambda pod: Named(pod.namespace, pod.name, pod.manifest_name),
        labels=lambda pod: pod.labels,
    )
