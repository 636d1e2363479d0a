# SPDX-License-Identifier: Apache-2.0
"""CPU per zone: who counts, who is passed over, who spoils it for all."""

import pytest

from agent.model.nodes.node import Taint
from agent.model.quantity import parse_quantity
from agent.topology.hints.capacity import read_capacity, read_zone_quantities
from tests.topology.builders import node, nodes

ROLE = "node-role.kubernetes.io/control-plane"
OLD_ROLE = "node-role.kubernetes.io/master"


def test_cpu_is_added_per_zone_and_zones_come_in_ascending_order():
    """TOP-9, NUM-2."""
    capacity = read_capacity([node("n1", "b", "2"), node("n2", "a", "500m"), node("n3", "b", "1500m")]).capacity

    assert list(capacity.milli.items()) == [("a", 500), ("b", 3500)]
    assert capacity.ratios == {"a": 0.125, "b": 0.875}


def test_zone_names_sort_by_bytes():
    """NUM-2: upper case before lower case, digits as characters."""
    capacity = read_capacity(nodes(z10="1", z9="1", Z="1", é="1")).capacity

    assert list(capacity.milli) == ["Z", "z10", "z9", "é"]


@pytest.mark.parametrize("value", ["", "true", "false"])
@pytest.mark.parametrize("label", [ROLE, OLD_ROLE])
def test_a_control_plane_label_leaves_the_node_out_whatever_its_value(label, value):
    """TOP-6: even with `false`, and even if the node lacks a zone."""
    reading = read_capacity([*nodes(a="2", b="2"), node("cp", None, None, labels={label: value})])

    assert reading.capacity is not None
    assert [(one.name, one.cause) for one in reading.left_out] == [("cp", "role-label")]


@pytest.mark.parametrize("ready", ["False", "Unknown", None])
def test_a_node_that_is_not_ready_is_left_out_and_harms_nobody(ready):
    """TOP-7, TOP-8: skipped nodes never cause `node-info`."""
    reading = read_capacity([*nodes(a="2", b="2"), node("down", None, None, ready=ready)])

    assert reading.capacity is not None
    assert [(one.name, one.cause) for one in reading.left_out] == [("down", "not-ready")]


@pytest.mark.parametrize(
    ("zone", "cpu", "cause"),
    [(None, "4", "zone-missing"), ("", "4", "zone-missing"), ("a", None, "cpu-missing"), ("a", "0", "cpu-zero")],
)
def test_one_incomplete_node_spoils_the_information_and_is_named(zone, cpu, cause):
    """TOP-8, TOP-54: upstream only says that some node is incomplete."""
    reading = read_capacity([*nodes(a="2", b="2"), node("bad", zone, cpu)])

    assert reading.capacity is None
    assert [(one.name, one.cause) for one in reading.broken] == [("bad", cause)]


def test_taints_and_cordons_do_not_matter():
    """TOP-8."""
    tainted = node("n2", "b", "2", taints=(Taint("k", "NoSchedule"),), is_unschedulable=True)

    assert read_capacity([node("n1", "a", "2"), tainted]).capacity is not None


@pytest.mark.parametrize("cluster", [(), nodes(a="2"), (node("n1", "a"), node("n2", "a"))])
def test_fewer_than_two_zones_are_not_enough(cluster):
    """TOP-10."""
    reading = read_capacity(cluster)

    assert reading.capacity is None
    assert reading.broken == ()


def test_each_sum_is_rounded_by_itself_so_shares_may_exceed_one():
    """TOP-9: 1.5 + 1.5 + 2.5 micro thousandths round to 2, 2 and 3, their total to 6."""
    capacity = read_capacity(nodes(a="1500u", b="1500u", c="2500u")).capacity

    assert capacity.milli == {"a": 2, "b": 2, "c": 3}
    assert capacity.ratios["c"] == 0.5


def test_a_filter_counts_only_nodes_that_can_carry_clients():
    """TOP-53: standalone only; kubernetes/kubernetes#110714."""
    cluster = [
        node("n1", "a", labels={"pool": "web"}),
        node("n2", "b", labels={"pool": "web"}),
        node("n3", "c", labels={"pool": "db"}),
    ]

    reading = read_capacity(cluster, {"pool": "web"})

    assert reading.zones == ("a", "b")
    assert [(one.name, one.cause) for one in reading.left_out] == [("n3", "node-selector")]


def test_a_table_of_zones_counts_like_one_node_each():
    """TOP-50, TOP-94."""
    table = {zone: parse_quantity(cpu) for zone, cpu in {"b": "4", "a": "2"}.items()}

    assert read_zone_quantities(table) == read_capacity(nodes(a="2", b="4"))


@pytest.mark.parametrize("table", [{"a": "0", "b": "4"}, {"": "2", "a": "4"}])
def test_a_table_with_an_empty_zone_is_broken(table):
    """TOP-8 applied to the table."""
    reading = read_zone_quantities({zone: parse_quantity(cpu) for zone, cpu in table.items()})

    assert reading.capacity is None
    assert len(reading.broken) == 1
