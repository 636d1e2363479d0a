# SPDX-License-Identifier: Apache-2.0
"""What Services of a bare node are given: an address and an age."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.model.kube_objects import Service
from agent.services.objects.manifest import Allotted, allot
from agent.services.objects.reading_service import read_service

RANGES = ("10.96.0.0/24", "fd00:96::/64")
NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def service(name: str, **spec: Any) -> Service:
    return msgspec.convert({"metadata": {"name": name, "namespace": "shop"}, "spec": spec}, type=Service)


def addresses(services: list[Service]) -> dict[str, str]:
    return {one.metadata.name: one.spec.cluster_ip for one in services}


def test_a_service_without_an_address_gets_one_and_keeps_it() -> None:
    """FS-21, CL-2: over restarts, and where nothing is remembered too."""
    first, known = allot([service("web")], RANGES, {}, NOW)
    after, kept = allot([service("web"), service("b")], RANGES, known, LATER)
    forgotten, _ = allot([service("web")], RANGES, {}, LATER)

    assert addresses(first)["web"].startswith("10.96.0.")
    assert addresses(after)["web"] == addresses(first)["web"] == addresses(forgotten)["web"]
    assert after[0].metadata.creation_timestamp == NOW
    assert (kept["shop/web"].seen, kept["shop/b"].seen) == (NOW, LATER)


def test_both_families_are_given_where_both_are_asked_for() -> None:
    """FS-21."""
    (made,), _ = allot([service("web", ipFamilies=["IPv6", "IPv4"])], RANGES, {}, NOW)

    assert [":" in text for text in made.spec.cluster_ips or ()] == [True, False]
    assert made.spec.ip_families == ("IPv6", "IPv4")


def test_what_has_no_address_on_purpose_gets_none() -> None:
    """IN-2."""
    services = [service("headless", clusterIP="None"), service("named", type="ExternalName")]
    filled, _ = allot(services, RANGES, {}, NOW)

    assert addresses(filled) == {"headless": "None", "named": ""}


def test_without_a_network_it_is_a_fault() -> None:
    """FS-21: not silence."""
    (made,), _ = allot([service("web")], ["garbage"], {}, NOW)
    read = read_service(made)

    assert read.facts is None
    assert [(one.where, one.path) for one in read.findings] == [("Service shop/web", "spec.clusterIP")]


def test_an_address_that_a_manifest_gives_is_taken_from_whoever_was_allotted_it() -> None:
    """FS-21."""
    first, known = allot([service("web")], RANGES, {}, NOW)
    taken = addresses(first)["web"]
    after, _ = allot([service("web"), service("fixed", clusterIP=taken)], RANGES, known, LATER)

    assert addresses(after)["fixed"] == taken
    assert addresses(after)["web"] not in (taken, "")


@given(names=st.lists(st.sampled_from([f"s{number}" for number in range(9)]), unique=True), fixed=st.integers(0, 8))
def test_no_two_have_one_address_and_a_full_network_says_so(names: list[str], fixed: int) -> None:
    """FS-21: six addresses."""
    services = [service(name, **({"clusterIP": "10.96.0.3"} if name == f"s{fixed}" else {})) for name in names]
    known: dict[str, Allotted] = {}
    for _ in range(2):
        filled, known = allot(services, ("10.96.0.0/29",), known, NOW)
        given_out = [text for text in addresses(filled).values() if text]
        assert len(given_out) == len(set(given_out)) == min(len(names), 6)
        faults = [path for one in filled for path in read_service(one).findings if path.path == "spec.clusterIP"]
        assert len(faults) == max(0, len(names) - 6)
