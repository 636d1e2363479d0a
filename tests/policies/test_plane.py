# SPDX-License-Identifier: Apache-2.0
"""Policies come into force before containers start, whatever fails or dies on the way."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.drivers.clock.driver import SystemClock
from agent.model.component import State
from agent.model.finding import Finding
from agent.model.manifests.snapshot import ManifestSnapshot
from agent.model.pods.unprotected import PodUnprotected
from agent.model.services.flow import Flow
from agent.objects.run.memory import ObjectMemory
from agent.policies.attach.policy_service import PolicyService
from agent.policies.manifest.objects import PolicedPod, Policy
from agent.policies.manifest.reading import POLICY_READING
from agent.policies.ports import TableTaken
from agent.policies.rules.building import MOST_LINES, Builder
from agent.policies.rules.changing import change, outgrows
from agent.policies.rules.nft_text import NO_GUARD, whole_text
from agent.policies.rules.table import GUARD, NO_TABLE, TABLE
from agent.policies.run.bridges import KEYS, SETTINGS
from agent.policies.run.set_aside import PAUSES_S, SetAside
from agent.wire.kepd.v1 import policy_pb2 as pb
from tests.objects.following import following
from tests.policies.fake_table import FakeTable, taken
from tests.policies.making import policed, policies_of
from tests.policies.random_cases import Cases
from tests.policies.running import GivenFlows, GivenManifests, GivenPods, Running, node_addresses, running


class StandingClock(SystemClock):
    """Goes where it is put."""

    s = 0.0

    def now_s(self) -> float:
        return self.s


WEB, DB = (("app", "web"),), (("app", "db"),)


def pod(name: str, address: str, labels: Any = WEB, **more: Any) -> PolicedPod:
    return PolicedPod(f"uid-{name}", "default", name, labels, (address,), **more)


def policy(name: str = "closed", app: str = "web", **spec: Any) -> dict[str, Any]:
    selector = {"podSelector": {"matchLabels": {"app": app}}}
    return {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name},
        "spec": {**selector, **spec},
    }  # fmt: skip


def wanted(objects: list[dict[str, Any]], pods: list[PolicedPod]) -> Any:
    return taken(None, whole_text(Builder().table(policies_of(objects), pods)))


async def test_without_policies_the_kernel_is_not_touched_and_no_container_waits() -> None:
    """POL-03."""
    async with running(GivenManifests(), GivenPods(pod("a", "10.0.0.16"))) as node:
        await node.until(State.READY)
        await node.plane.hold("uid-a")

        assert node.table.loads == []


async def test_a_container_waits_until_the_kernel_has_the_policies_of_its_pod() -> None:
    """POL-04."""
    objects, pods = [policy()], GivenPods()
    async with running(GivenManifests(*objects), pods) as node:
        await node.until(State.READY)
        pods.known = [pod("a", "10.0.0.16")]
        await node.plane.hold("uid-a")

        assert node.table.state == wanted(objects, pods.known)
        assert node.table.state.maps["ingress4"] == {"10.0.0.16": "no_ingress"}


async def test_a_refused_transaction_keeps_the_pod_waiting_with_the_reason_and_is_tried_again() -> None:
    """POL-04."""
    table, pods = FakeTable(), GivenPods(pod("a", "10.0.0.16"))
    table.fails = 1
    async with running(GivenManifests(policy()), pods, table=table) as node:
        with pytest.raises(PodUnprotected, match="has not taken the network policies: nft refused"):
            await node.plane.hold("uid-a")
        message = await node.until(State.DEGRADED, "nft refused")
        await node.plane.hold("uid-a")

        assert "no memory" in message
        assert [one.reason for one in node.events] == ["NetworkPolicyNotReady"]
        assert node.metrics.refused == 1
        assert table.state == wanted([policy()], pods.known)


async def test_after_an_unknown_outcome_the_whole_table_is_written_again() -> None:
    table, pods = FakeTable(), GivenPods(pod("a", "10.0.0.16"))
    table.is_unknown = True
    async with running(GivenManifests(policy()), pods, table=table) as node:
        await node.until(State.READY)
        await node.plane.hold("uid-a")

        first, guard, again, no_guard = table.loads
        assert first == again == guard.replace(GUARD, TABLE)
        assert no_guard == NO_GUARD


async def test_what_stands_is_kept_until_it_is_known_which_pods_an_earlier_kepd_left() -> None:
    """POL-05."""
    table, left = FakeTable(), pod("a", "10.0.0.16")
    table.state = wanted([policy()], [left])
    unknown = PolicedPod("uid-a", "default", "a", WEB, None)
    pods = GivenPods(unknown, is_listed=False)
    async with running(GivenManifests(policy()), pods, table=table) as node:
        await asyncio.sleep(0)
        hold = asyncio.create_task(node.plane.hold("uid-a"))
        pods.list_them()
        for _ in range(50):
            await asyncio.sleep(0)
        loads = list(table.loads)
        pods.put(left)
        await hold

        assert loads == []
        assert table.state == wanted([policy()], [left])


async def test_a_policy_that_the_kernel_does_not_take_holds_up_no_other_and_isolates_its_own_pods() -> None:
    """POL-18."""
    good = [policy(f"p{number}", f"a{number}", ingress=[{}]) for number in range(5)]
    hostile = [policy(name, name, ingress=[{}]) for name in ("bad", "worse")]
    table, victim, others = (
        FakeTable(),
        pod("victim", "10.0.0.16"),
        [pod(name, address, (("app", name),)) for name, address in (("bad", "10.0.0.17"), ("worse", "10.0.0.19"))],
    )
    table.refuses = ('"default/bad"', '"default/worse"')
    async with running(GivenManifests(policy(ingress=[{}])), GivenPods(victim, *others), table=table) as node:
        await node.plane.hold("uid-victim")
        node.manifests.give(policy(), *hostile, *good)
        message = await node.until(State.DEGRADED, "NetworkPolicy default/bad is set aside: nft refused")
        await node.plane.hold("uid-victim")
        with pytest.raises(PodUnprotected, match="does not take network policy default/bad: nft refused"):
            await node.plane.hold("uid-bad")
        explained = await PolicyService(node.plane, node_addresses).explain_policy(pb.ExplainPolicyRequest(name="bad"))
        assert table.state is not None
        in_force = dict(table.state.maps["ingress4"])
        node.pods.put(victim, *others, pod("new", "10.0.0.18", (("app", "a3"),)))
        await node.plane.hold("uid-new")
        table.refuses = ()
        node.manifests.give(policy(), policy("bad", "bad", ingress=[{"ports": [{"port": 80}]}]), *good)
        await node.until(State.READY)
        await node.plane.hold("uid-bad")

    assert "its pods are isolated, and new ones wait" in message
    assert not explained.is_in_force
    assert any(one.startswith("not in force: it is set aside: nft refused") for one in explained.lines)
    assert in_force == dict.fromkeys(("10.0.0.16", "10.0.0.17", "10.0.0.19"), "no_ingress")
    assert {one.message.split(" is ")[0] for one in node.events[1:]} == {
        "NetworkPolicy default/bad", "NetworkPolicy default/worse"
    }  # fmt: skip


async def test_of_a_policy_whose_change_the_kernel_does_not_take_the_last_version_stays() -> None:
    """POL-18."""
    table, pods = FakeTable(), GivenPods(pod("a", "10.0.0.16"), pod("b", "10.0.0.17", DB))
    peers = [{"from": [{"podSelector": {"matchLabels": {"app": "db"}}}]}]
    async with running(GivenManifests(policy(ingress=peers)), pods, table=table) as node:
        await node.plane.hold("uid-a")
        table.refuses = ("tcp dport 81",)
        node.manifests.give(policy(ingress=[{"ports": [{"port": 81}]}]))
        await node.until(State.DEGRADED, "its last version stays in force")
        await node.plane.hold("uid-a")

        assert table.state == wanted([policy(ingress=peers)], pods.known)


async def test_what_is_set_aside_is_tried_again_after_pauses_that_grow() -> None:
    clock, tried, refuses = StandingClock(), list[int](), {"default/p3", "default/p5"}
    policies = policies_of([policy(f"p{number}", ingress=[{}]) for number in range(9)])

    async def attempt(given: Mapping[str, Policy]) -> str:
        tried.append(len(given))
        if any(given[key] == policies[key] for key in refuses):
            return "refused"
        asides.are_in_force(given)
        return ""

    asides = SetAside(clock)
    asides.without(policies)
    said = [await asides.sift(asides.newcomers(policies), attempt, "refused")]
    first = set(asides.sentences())
    for pause_s in PAUSES_S:
        clock.s += pause_s - 1
        assert asides.due() == []
        clock.s += 1
        said.append(await asides.sift(asides.due(), attempt, ""))
    refuses.clear()
    clock.s += PAUSES_S[-1]
    said.append(await asides.sift(asides.due(), attempt, ""))

    assert first == {"default/p3", "default/p5"}
    assert set(said) == {""}
    assert asides.sentences() == {}
    assert len(tried) < 60


async def test_pods_whose_chains_are_too_many_are_isolated_and_the_first_keep_theirs() -> None:
    """POL-17: each of these pods has other policies than all others, so that each has a chain of its own."""
    rules = [{"ports": [{"port": 1 + number}], "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]} for number in range(100)]
    objects = [
        policy(f"p{number}", ingress=[{**one, "from": [{"ipBlock": {"cidr": f"10.{number}.0.0/16"}}]} for one in rules])
        for number in range(10)
    ]
    for number, one in enumerate(objects):
        one["spec"]["podSelector"] = {"matchLabels": {f"l{number}": "1"}}
    pods = [
        pod(f"e{number}", f"10.0.0.{number}", tuple((f"l{bit}", "1") for bit in range(10) if number >> bit & 1))
        for number in range(1, 100)
    ]
    builder = Builder()
    table = builder.table(policies_of(objects), [*pods, pod("other", "10.0.1.1", (("l1", "1"),))])

    assert sum(len(one.rules) for one in table.chains.values()) <= MOST_LINES["namespace"]
    assert "uid-e1" not in builder.crowded
    assert table.ways["ingress4"]["10.0.0.99"] == "no_ingress"
    assert "at most 5000 are taken" in builder.crowded["uid-e99"]
    assert "uid-other" not in builder.crowded


async def test_policies_that_were_deleted_meanwhile_take_the_table_with_them() -> None:
    table = FakeTable()
    table.state = wanted([policy()], [pod("a", "10.0.0.16")])
    async with running(GivenManifests(), GivenPods(is_listed=False), table=table) as node:
        await node.until(State.READY)

        assert table.state is None


async def test_an_address_is_judged_by_the_policies_of_the_pod_that_has_it_now() -> None:
    """POL-06."""
    objects = [policy("closed"), policy("open", "db", ingress=[{}])]
    old, new = pod("old", "10.0.0.16"), pod("new", "10.0.0.16", DB)
    pods = GivenPods(old)
    async with running(GivenManifests(*objects), pods) as node:
        await node.plane.hold("uid-old")
        pods.known = [old, new]
        await node.plane.hold("uid-new")

        assert node.table.state == wanted(objects, [new])


async def test_an_address_counts_as_that_of_the_pod_that_got_it_last_also_for_its_peers() -> None:
    """POL-06."""
    allowed = policy(ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "db"}}}]}])
    old, new, web = pod("old", "10.0.0.17", DB), pod("new", "10.0.0.17", ()), pod("web", "10.0.0.16")
    pods = GivenPods(web, old)
    async with running(GivenManifests(allowed), pods) as node:
        await node.plane.hold("uid-old")
        before = set().union(*node.table.state.sets.values())  # type: ignore[union-attr]
        pods.known = [web, old, new]
        await node.plane.hold("uid-new")
        after = set().union(*node.table.state.sets.values())  # type: ignore[union-attr]

    assert "10.0.0.17" in before
    assert "10.0.0.17" not in after


async def test_addresses_that_are_not_asked_for_again_are_those_of_before() -> None:
    pods = GivenPods(pod("a", "10.0.0.16"))
    async with running(GivenManifests(policy()), pods) as node:
        await node.plane.hold("uid-a")
        pods.known = [PolicedPod("uid-a", "default", "a", WEB, None), pod("b", "10.0.0.17")]
        await node.plane.hold("uid-b")

        assert node.table.state is not None
        assert node.table.state.maps["ingress4"].keys() == {"10.0.0.16", "10.0.0.17"}


async def test_a_pod_whose_labels_nobody_knows_any_more_is_refused_everything() -> None:
    lost = pod("lost", "10.0.0.16", None)
    async with running(GivenManifests(policy(egress=[{}])), GivenPods(lost)) as node:
        await node.plane.hold("uid-lost")

        assert node.table.state is not None
        assert node.table.state.maps["ingress4"] == {"10.0.0.16": "no_ingress"}
        assert node.table.state.maps["egress4"] == {"10.0.0.16": "no_egress"}


async def test_what_others_do_to_the_table_is_undone() -> None:
    """POL-07."""
    pods = GivenPods(pod("a", "10.0.0.16"))
    async with running(GivenManifests(policy()), pods) as node:
        await node.plane.hold("uid-a")
        node.table.state, loaded = None, asyncio.Event()
        node.table.after_load = loaded.set
        node.table.touched.put_nowait("process 1 (nft) deleted the table")
        await asyncio.wait_for(loaded.wait(), 20)

        assert node.table.state == wanted([policy()], pods.known)


async def test_flows_that_a_changed_policy_no_longer_allows_are_ended_and_others_are_not() -> None:
    """POL-08: of the node's own nothing is touched."""
    web, db, node = (bytes([10, 0, 0, one]) for one in (16, 17, 1))
    flows = [Flow("IPv4", "TCP", source, 40000 + place, web, 80, web, 80) for place, source in enumerate((db, node))]
    allowed = policy(ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "db"}}}]}])
    pods, tracked = GivenPods(pod("web", "10.0.0.16"), pod("db", "10.0.0.17", DB)), GivenFlows(*flows)
    async with running(GivenManifests(allowed), pods, flows=tracked) as made:
        await made.plane.hold("uid-web")
        made.manifests.give(policy())
        ended = await asyncio.wait_for(tracked.deleted.get(), 20)

        assert ended == flows[0]
        assert tracked.tracked == flows[1:]


async def test_a_policy_with_a_fault_changes_nothing_until_it_is_mended() -> None:
    """POL-09."""
    pods = GivenPods(pod("a", "10.0.0.16"))
    async with running(GivenManifests(policy()), pods) as node:
        await node.plane.hold("uid-a")
        loads = len(node.table.loads)
        node.manifests.give(policy(policyTypes=["Sideways"]))
        message = await node.until(State.DEGRADED, "Sideways")

        assert "the last good version of NetworkPolicy default/closed stays in force" in message
        assert node.events[0].reason == "FailedValidation"
        assert len(node.table.loads) == loads


async def test_where_nothing_is_enforced_a_policy_is_said_to_do_nothing_and_its_table_goes() -> None:
    """POL-10."""
    table = FakeTable()
    table.state = wanted([policy()], [pod("a", "10.0.0.16")])
    manifests, pods = GivenManifests(policy()), GivenPods(pod("a", "10.0.0.16"))
    async with running(manifests, pods, table=table, off="policies.enabled is false") as node:
        message = await node.until(State.DEGRADED)
        await node.plane.hold("uid-a")

        assert "NetworkPolicy default/closed is not enforced here: policies.enabled is false" in message
        async with asyncio.timeout(20):
            while table.state is not None:
                await asyncio.sleep(0.01)


async def test_a_table_of_another_kepd_is_left_alone_and_pods_with_policies_wait() -> None:
    @contextmanager
    def claim() -> Iterator[None]:
        raise TableTaken("another process runs the policies plane")
        yield

    pods = GivenPods(pod("a", "10.0.0.16"))
    async with running(GivenManifests(policy()), pods, claim=claim) as node:
        with pytest.raises(PodUnprotected, match="another process runs"):
            await node.plane.hold("uid-a")

        assert node.table.loads == []


def bridge(root: Path, value: str | None) -> None:
    (root / "sys/class/net/cni0/brif/veth1").mkdir(parents=True)
    if value is not None:
        (root / SETTINGS).mkdir(parents=True)
        for key in KEYS:
            (root / SETTINGS / key).write_text(value)


async def test_bridges_are_told_to_show_their_packets(tmp_path: Path) -> None:
    """POL-11."""
    bridge(tmp_path, "0\n")
    async with running(GivenManifests(policy()), GivenPods(pod("a", "10.0.0.16")), root=tmp_path) as node:
        await node.plane.hold("uid-a")

        assert [(tmp_path / SETTINGS / key).read_text() for key in KEYS] == ["1\n", "1\n"]


async def test_a_bridge_that_shows_nothing_is_said_loudly(tmp_path: Path) -> None:
    """POL-11."""
    bridge(tmp_path, None)
    async with running(GivenManifests(policy()), GivenPods(pod("a", "10.0.0.16")), root=tmp_path) as node:
        message = await node.until(State.DEGRADED)
        advice = await node.plane.advice()

        assert message.startswith(
            "policies between pods of one bridge (cni0) are not enforced: the module br_netfilter"
        )
        assert "modprobe br_netfilter" in advice[0].mend


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("load", range(1, 10))
async def test_no_pod_that_was_started_is_unprotected_wherever_kepd_dies(load: int, when: str) -> None:
    """POL-12: kepd dies before or after each transaction; what had begun stays protected by what is left, until the
    next kepd has all of it in force again. At last the address of one pod is given to another."""
    peers = [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}]
    objects = [policy(), policy("from-web", "db", ingress=peers)]
    a, b, c, d = pod("a", "10.0.0.16"), pod("b", "10.0.0.17", DB), pod("c", "10.0.0.18"), pod("d", "10.0.0.17")
    steps = [([a], a), ([a, b], b), ([a, b, c], c), ([a, c, d], d)]
    table, started, done = FakeTable(), list[PolicedPod](), 0
    table.dies = (load, when)

    def check() -> None:
        for one in started:
            expected = wanted(objects, [a, one]).maps["ingress4"]
            assert table.state is not None
            assert table.state.maps["ingress4"].items() >= expected.items(), one.name

    table.after_load = check
    for _ in range(2):
        pods = GivenPods(*steps[max(done - 1, 0)][0][: done or None])
        async with running(GivenManifests(*objects), pods, table=table) as node:
            while done < len(steps):
                there, one = steps[done]
                started = [other for other in started if other in there]
                if await _dies(node, pods, there, one):
                    break
                started.append(one)
                check()
                done += 1
        table.dies = None

    assert done == len(steps)
    assert table.state == wanted(objects, steps[-1][0])


async def _dies(node: Running, pods: GivenPods, there: list[PolicedPod], one: PolicedPod) -> bool:
    """Whether kepd dies before the container of the pod may start."""
    pods.known = there
    hold = asyncio.create_task(node.plane.hold(one.uid))
    assert node.task is not None
    await asyncio.wait([hold, node.task], return_when=asyncio.FIRST_COMPLETED)
    if hold.done():
        await hold
        return False
    hold.cancel()
    await asyncio.wait([hold])
    return True


async def test_changes_one_after_the_other_make_the_table_that_is_made_at_once() -> None:
    """POL-13: 300 random steps of pods and policies, through a kernel that refuses what is in use or not there."""
    builder, before, kernel = Builder(), NO_TABLE, FakeTable()
    for seed in range(300):
        cases = Cases(seed)
        table = builder.table(policies_of([cases.policy("a"), *cases.policies()]), map(policed, cases.pods()))
        if before is NO_TABLE or outgrows(before, table):
            kernel.has_guard = True
            await kernel.load(whole_text(table))
        else:
            made = change(before, table)
            await kernel.add_chains(made.new_chains)
            await kernel.load(made.text)
            await kernel.change(made.elements, made.gone_chains, made.gone_sets)
        before = table

        assert kernel.state == taken(None, whole_text(table)), seed
        assert not change(table, table)


async def test_what_an_earlier_kepd_enforces_stays_until_it_is_known_which_policies_there_are() -> None:
    """POL-05: nothing is remembered, and a file cannot be read."""
    table, manifests = FakeTable(), GivenManifests()
    table.state = standing = wanted([policy()], [pod("a", "10.0.0.16")])
    problem = Finding("/m/a.yaml", "", "cannot be read: Input/output error")
    manifests.replace(ManifestSnapshot({"/m/b.yaml": b""}, (problem,), frozenset({"/m/a.yaml"}), is_first=True))
    pods = GivenPods(pod("a", "10.0.0.16"), pod("host", "10.0.0.1", is_host_network=True))
    async with running(manifests, pods, table=table) as node:
        message = await node.until(State.DEGRADED)
        await node.plane.hold("uid-host")
        with pytest.raises(PodUnprotected, match=r"which policies stand in /m/a\.yaml is not known"):
            await node.plane.hold("uid-a")

        assert "which policies stand in /m/a.yaml is not known, for it cannot be read; /m/a.yaml: cannot be" in message
        assert table.state == standing
        manifests.give(policy(app="db"))
        await node.until(State.READY)
        await node.plane.hold("uid-a")

        assert table.state == wanted([policy(app="db")], pods.known)


async def test_a_file_that_cannot_be_read_holds_up_nobody_where_nothing_was_enforced() -> None:
    manifests, unread = GivenManifests(), frozenset({"/m/a.yaml"})
    manifests.replace(ManifestSnapshot({"/m/b.yaml": b""}, (Finding("/m/a.yaml", "", "no"),), unread, is_first=True))
    async with running(manifests, GivenPods(pod("a", "10.0.0.16"))) as node:
        await node.plane.hold("uid-a")


async def test_a_node_without_a_directory_of_manifests_is_ready() -> None:
    manifests = GivenManifests()
    manifests.replace(ManifestSnapshot(unread=frozenset({"/m"}), is_first=True, is_missing=True))
    async with running(manifests, GivenPods()) as node:
        message = await node.until(State.READY)

        assert message == "0 policies; which policies stand in /m is not known, for it is not there"


@pytest.mark.parametrize("trouble", ["a fault", "an unread file", "no directory", "a rival"])
async def test_the_next_kepd_enforces_what_was_in_force(tmp_path: Path, trouble: str) -> None:
    """POL-09, over a restart."""
    folder, table, pods = tmp_path / "manifests", FakeTable(), GivenPods(pod("a", "10.0.0.16"))
    folder.mkdir()
    file = folder / "b.yaml"
    file.write_text(json.dumps(policy()))
    database = tmp_path / "objects.db"
    async with following(folder, database, POLICY_READING) as (source,), running(source, pods, table=table) as node:
        await node.plane.hold("uid-a")
        await node.until(State.READY, "1 policies")
        while not ObjectMemory(database).load().settled:
            await asyncio.sleep(0.01)
    if trouble == "a fault":
        file.write_text(json.dumps(policy(ingres=[])))
    elif trouble == "an unread file":
        file.chmod(0o666)
    elif trouble == "no directory":
        folder.rename(tmp_path / "aside")
    else:
        (folder / "a.yaml").write_text(json.dumps(policy(app="db")))
    async with following(folder, database, POLICY_READING) as (source,), running(source, pods, table=table) as node:
        await node.until(State.DEGRADED)
        await node.plane.hold("uid-a")

        assert table.state == wanted([policy()], pods.known)
