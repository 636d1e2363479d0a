# SPDX-License-Identifier: Apache-2.0
"""Pods learn the addresses that their node has now, and cost no look at it for each of their steps."""

from dataclasses import replace

from agent.config.document import Configuration
from agent.config.effective import HostFacts, fill_defaults
from agent.pods.attach.settings import ADDRESSES_S, CurrentSettings, own_addresses, pod_settings
from agent.pods.settings import PodNodeFacts
from kepd_dns.attach.settings import pod_servers


class Node:
    def __init__(self) -> None:
        self.configuration = fill_defaults(Configuration(), HostFacts(host_name="n", state_directory="/state"))
        self.addresses: tuple[str, ...] = ("192.0.2.7",)
        self.now_s = 100.0
        self.looks = 0
        self.settings = CurrentSettings(
            lambda: self.configuration, PodNodeFacts(addresses=self.addresses),
            lambda now, facts: pod_settings(now, facts, "i", pod_servers), lambda: self.now_s, self.look,
        )  # fmt: skip

    def look(self, configuration: Configuration) -> tuple[str, ...]:
        self.looks += 1
        return tuple(configuration.node.addresses) or self.addresses


def test_a_default_route_that_changes_is_followed() -> None:
    """FS-22: also what a pod of the host's network is told, not its node ports alone."""
    node = Node()
    first = node.settings()
    node.addresses = ("198.51.100.9",)
    before = node.settings()
    node.now_s += ADDRESSES_S

    assert before is first
    assert node.settings().facts.addresses == ("198.51.100.9",)


def test_between_two_networks_a_node_has_its_last_address() -> None:
    node = Node()
    node.settings()
    node.addresses = ()
    node.now_s += ADDRESSES_S

    assert node.settings().facts.addresses == ("192.0.2.7",)


def test_a_reload_tells_pods_the_addresses_that_it_brings() -> None:
    node = Node()
    node.settings()
    node.configuration = replace(
        node.configuration, node=replace(node.configuration.node, addresses=("203.0.113.1", "2001:db8::1"))
    )

    assert node.settings().facts.addresses == ("203.0.113.1", "2001:db8::1")


def test_steps_of_pods_share_one_look() -> None:
    node = Node()
    made = {id(node.settings()) for _ in range(1000)}
    node.now_s += ADDRESSES_S
    made |= {id(node.settings()) for _ in range(1000)}

    assert node.looks == 2
    assert len(made) == 1


def test_what_is_configured_counts() -> None:
    node = Node()
    named = replace(node.configuration, node=replace(node.configuration.node, addresses=("192.0.2.9",)))

    assert own_addresses(named) == ("192.0.2.9",)


def test_a_kubelet_that_begins_later_evicts_from_then_on() -> None:
    """EVN-01: unless the configuration says that kepd does so beside one."""
    node = Node()
    assert node.settings().eviction is not None
    node.settings.kubelet_changed("a sign")
    assert node.settings().eviction is None
    pods = node.configuration.pods
    eviction = replace(pods.eviction, mode="on")
    node.configuration = replace(node.configuration, pods=replace(pods, eviction=eviction))
    assert node.settings().eviction is not None
