# SPDX-License-Identifier: Apache-2.0
"""Portions: each Service in one, no address without an owner between two."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.services.nft_table import Batch
from agent.model.services.service import ServiceKey
from agent.services import batches as module
from agent.services.batches import halves, portions, size_of
from agent.services.nftables.changes import removals
from agent.services.objects.fold import ServiceIndex
from agent.services.routes.desired import Desired, NodeFacts
from agent.services.routes.frontends import ServicePlan, claim_of
from agent.services.routes.selection import Place
from tests.services.making import make_service, make_slice

Sizes = list[tuple[int, int]]


def plans_of(sizes: Sizes) -> dict[ServiceKey, ServicePlan | None]:
    """Services by their address and how many endpoints they have; of each address the first claimant has it."""
    fold = ServiceIndex()
    for number, (address, endpoints) in enumerate(sizes):
        fold.put_service(make_service(f"s{number}", ip=f"10.96.1.{address}"))
        fold.put_slice(make_slice([f"10.1.{number}.{one}" for one in range(1, endpoints + 1)], service=f"s{number}"))
    desired = Desired("IPv4", NodeFacts(Place("node-a")), fold)
    desired.changed.update(fold.services)
    return desired.update()


SIZES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=0, max_size=12)


@given(before=SIZES, after=SIZES, most=st.integers(1, 30), suspects=st.sets(st.integers(0, 11)))
def test_portions_hold_what_they_promise(before: Sizes, after: Sizes, most: int, suspects: set[int]) -> None:
    """FS-7, FS-17, SY-6."""
    had, wanted = plans_of(before), plans_of(after)
    wanted.update({key: None for key in had if key not in wanted})
    doubted = {ServiceKey("shop", f"s{number}") for number in suspects}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "MOST_SERVICES", 4)
        found = list(portions(wanted, had, most, doubted))
    place = {key: number for number, portion in enumerate(found) for key in portion}
    claims = {
        key: ({*claimed(had.get(key))}, {*claimed(plan)}) for key, plan in wanted.items()
    }  # fmt: skip

    assert sorted(key for portion in found for key in portion) == sorted(wanted)
    assert len(found) >= 1
    for giver, (lost, _) in claims.items():
        for taker, (_, got) in claims.items():
            assert not lost & got or place[giver] == place[taker]
    for number, portion in enumerate(found[:-1]):
        later = found[number + 1]
        size = sum(size_of(wanted[key]) + size_of(had.get(key)) for key in (*portion, *later))
        assert portion
        assert size > most or len(portion) + len(later) > 4 or doubted & {*portion, *later}


def claimed(plan: ServicePlan | None) -> list[object]:
    return [claim_of(one) for port in plan.ports for one in port.frontends] if plan is not None else []


def test_who_was_refused_before_comes_last() -> None:
    """SVN-105."""
    wanted = plans_of([(number, 1) for number in range(1, 6)])
    doubted = ServiceKey("shop", "s1")

    assert [key for portion in portions(wanted, {}, 100, {doubted}) for key in portion][-1] == doubted


def test_a_table_of_slots_counts_as_so_many() -> None:
    """SVN-41."""
    fold = ServiceIndex()
    fold.put_service(make_service("web", meta={"annotations": {"kepd.dev/balance": "maglev"}}))
    fold.put_slice(make_slice(["10.1.0.1", "10.1.0.2"]))
    desired = Desired("IPv4", NodeFacts(Place("node-a"), maglevs=1), fold)
    desired.changed.update(fold.services)
    (plan,) = desired.update().values()

    assert size_of(plan) == 2 + 251


def test_a_portion_is_halved() -> None:
    assert halves("abcde") == ("ab", "cde")


@given(counts=st.dictionaries(st.sampled_from(["services", "eps", "cluster_ips", "hairpin"]), st.integers(0, 20)))
def test_removals_go_from_where_packets_enter(counts: dict[str, int]) -> None:
    """NF-21: and what is replaced stays in one transaction with what comes."""
    deletes = {name: [bytes([one]) for one in range(count)] for name, count in counts.items()}
    adds = {"services": [(b"\0", "rj")]} if deletes.get("services") else {}
    whole = Batch(deletes=deletes, adds=adds)
    parts = list(removals(whole, 8))
    order = [name for part in parts for name in part.deletes if not part.adds]
    last_way_in = max([at for at, name in enumerate(order) if name == "services"], default=-1)
    first_endpoint = min([at for at, name in enumerate(order) if name == "eps"], default=len(order))
    gone = sorted((name, key) for part in parts for name, keys in part.deletes.items() for key in keys)

    assert gone == sorted((name, key) for name, keys in deletes.items() for key in keys)
    assert all(part.size <= 8 + 2 for part in parts) or len(parts) == 1
    assert len(parts) == 1 or last_way_in < first_endpoint
    assert [part for part in parts if part.adds] == [part for part in parts[-1:] if part.adds]
