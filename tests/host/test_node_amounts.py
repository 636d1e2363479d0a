# SPDX-License-Identifier: Apache-2.0
"""What a node has, and what of it is left for pods."""

from dataclasses import replace

from agent.config.document import Configuration
from agent.host.node_amounts import allocatable, capacity, marks


def test_what_is_reserved_is_no_pods() -> None:
    configuration = Configuration()
    kept = replace(configuration.pods.reserved, cpu=0.25, memory=64 << 20)
    configuration = replace(configuration, pods=replace(configuration.pods, reserved=kept))
    whole, left = capacity(configuration), allocatable(configuration)
    assert int(whole["memory"].removesuffix("Ki")) - int(left["memory"].removesuffix("Ki")) == 64 << 10
    assert left["cpu"] == f"{int(whole['cpu']) * 1000 - 250}m"
    assert whole["pods"] == left["pods"] == "110"


def test_a_node_says_what_it_is() -> None:
    assert set(marks()) == {"os_image", "architecture", "boot_id", "machine_id"}
