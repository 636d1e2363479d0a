# SPDX-License-Identifier: Apache-2.0
"""The pods of a workload, by the labels that it selects."""

import json
from typing import Any

from agent.cli.client import Client
from agent.cli.objects.words import find_named
from agent.kinds.pods import workloads
from agent.kinds.pods.manifests import SERVICE
from agent.kinds.registry import BY_API, BY_WORD, WORKLOADS, Kind, Named
from agent.wire.kepd.v1 import object_pb2, pod_pb2

PLURALS = tuple(BY_API[kind].plural for kind in WORKLOADS)


def workload_kind(word: str) -> Kind | None:
    """`deploy`, `ds` and the like; None for other kinds."""
    found = BY_WORD.get(word.lower())
    return found if found is not None and found.plural in PLURALS else None


def find_workload(daemon: Client, kind: Kind, name: str, *, elsewhere: bool = True) -> tuple[Named, dict[str, Any]]:
    request = object_pb2.ListObjectsRequest(kind=kind.api)
    listed = daemon.call(f"{SERVICE}/ListObjects", request, object_pb2.ListObjectsResponse).objects
    known = [Named(one.namespace, one.name) for one in listed]
    found = find_named(kind, name, known, daemon.namespace, elsewhere=elsewhere)
    return found, json.loads(listed[known.index(found)].content)


def pods_of(daemon: Client, kind: Kind, found: Named, made: dict[str, Any]) -> list[pod_pb2.Pod]:
    answer = daemon.call("kepd.v1.PodService/ListPods", pod_pb2.ListPodsRequest(), pod_pb2.ListPodsResponse)
    return workloads.pods_of(kind, found, made, answer.pods)
