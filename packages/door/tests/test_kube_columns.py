# SPDX-License-Identifier: Apache-2.0
"""kubectl prints what a server sends: the columns of an API server 1.36, which `columns.tsv` has."""

from pathlib import Path
from typing import Any

import pytest

from agent.kinds.shown import shown_of
from kepd_door.shape.kube_columns import columns_as_served
from kepd_door.shape.resources import RESOURCES
from kepd_door.shape.tables import definitions

SERVED = dict(
    line.split("\t") for line in (Path(__file__).parent / "columns.tsv").read_text().splitlines()
)  # fmt: skip
OURS = {resource.name: resource for resource in RESOURCES if resource.kind is not None and resource.kind.module}


def columns_of(name: str) -> list[Any]:
    kind = OURS[name].kind
    assert kind is not None
    return columns_as_served(name, shown_of(kind).columns_of(kind, is_wide=True))


@pytest.mark.parametrize("name", sorted(SERVED.keys() & OURS.keys()))
def test_a_table_has_the_columns_of_an_api_server(name: str) -> None:
    shown = [
        column["name"].upper() + "*" * column["priority"] for column in definitions(columns_of(name))
    ]  # fmt: skip
    assert shown == SERVED[name].split(",")


SERVICE = {
    "spec": {
        "type": "LoadBalancer", "clusterIP": "10.0.0.1", "selector": {"b": "2", "a": "1"},
        "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}],
    },
}  # fmt: skip
NODE = {
    "metadata": {"name": "n1", "labels": {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/edge": ""}},
    "spec": {"unschedulable": True},
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.9"}],
        "nodeInfo": {"kubeletVersion": "v1"},
    },
}  # fmt: skip
HELD = {"type": "a", "status": "True"}
POD = {"spec": {"readinessGates": [{"conditionType": "a"}]}, "status": {"conditions": [HELD]}}
EXPRESSIONS = [{"key": "x", "operator": "In", "values": ["2", "1"]}, {"key": "y", "operator": "DoesNotExist"}]
ENDPOINTS = [{"addresses": [f"10.0.0.{number}"]} for number in range(5)]
SLICE = {"addressType": "IPv4", "ports": [{}], "endpoints": ENDPOINTS}


@pytest.mark.parametrize(
    ("name", "made", "cells"),
    [
        ("services", SERVICE, {"TYPE": "LoadBalancer", "EXTERNAL-IP": "<pending>", "PORT(S)": "80:30080/TCP,53/UDP",
                               "SELECTOR": "a=1,b=2"}),
        ("services", {"spec": {"type": "ExternalName", "externalName": "a.b"}},
         {"EXTERNAL-IP": "a.b", "PORT(S)": "<none>", "CLUSTER-IP": "<none>"}),
        ("nodes", NODE, {"STATUS": "Ready,SchedulingDisabled", "ROLES": "edge,worker", "INTERNAL-IP": "10.0.0.9",
                         "EXTERNAL-IP": "<none>", "VERSION": "v1"}),
        ("pods", POD, {"READINESS GATES": "1/1", "IP": "<none>", "NODE": "<none>"}),
        ("deployments", {"spec": {"selector": {"matchLabels": {"a": "1"}, "matchExpressions": EXPRESSIONS}}},
         {"SELECTOR": "a=1,x in (1,2),!y"}),
        ("events", {"involvedObject": {"kind": "Pod", "name": "web"}}, {"OBJECT": "pod/web"}),
        ("endpointslices", SLICE, {"PORTS": "*", "ENDPOINTS": "10.0.0.0,10.0.0.1,10.0.0.2 + 2 more..."}),
        ("secrets", {"data": {"a": ""}}, {"TYPE": "Opaque", "DATA": "1"}),
        ("services", {"spec": 5, "status": {"loadBalancer": {"ingress": 7}}}, {"TYPE": "ClusterIP"}),
    ],
)  # fmt: skip
def test_cells_are_as_an_api_server_writes_them(name: str, made: Any, cells: dict[str, str]) -> None:
    columns = {column.title: column for column in columns_of(name)}

    assert {title: columns[title].cell(made) for title in cells} == cells
