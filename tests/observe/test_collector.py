# SPDX-License-Identifier: Apache-2.0
"""Passes over a tree of files: who reads, when, what is missing, and what is left open."""

import asyncio
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from agent.model.event import Event
from agent.model.pods.state import TERMINATED, ContainerState, PodState
from agent.model.runtime.event import EventKind, RuntimeEvent
from agent.observe.run.collector import WHOLE_EVERY_S, Collector, CollectorSettings
from agent.observe.run.container_registry import Roster
from agent.observe.run.oom_book import OomBook
from agent.observe.run.pages import Pages, PageSettings, PageSources
from agent.observe.sample.node_sample import NodeFigures
from tests.fakes.clock import FakeClock
from tests.observe.kernel_tree import FakeKernelFiles, KernelTree, ListedInstances


class Records:
    """Files in memory; `is_full` refuses to take any."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.is_full = False

    async def read_folder(self, folder: str) -> dict[str, bytes]:
        return {name.partition("/")[2]: content for name, content in self.files.items() if name.startswith(folder)}

    async def write(self, name: str, content: bytes, *, is_durable: bool = True) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.files[name] = content

    async def remove(self, name: str) -> None:
        self.files.pop(name, None)


class Observed:
    """Everything but the daemon."""

    def __init__(self, root: Path, version: int = 1, most_open: int = 8192) -> None:
        self.tree = KernelTree(root, version)
        self.runtime = ListedInstances(self.tree)
        self.files = FakeKernelFiles(root, most_open)
        self.clock = FakeClock()
        self.keep_ended_s = 300.0
        self.roster = Roster(self.runtime, self.files, lambda _one: True, self.clock.now_s)
        self.collector = Collector(
            self.roster, self.files, self.clock, lambda: CollectorSettings(keep_ended_s=self.keep_ended_s)
        )
        self.records = Records()
        self.events: list[Event] = []
        self.begin()

    def begin(self) -> None:
        """What a new process does."""
        self.book = OomBook(self.roster, self.records, self.events.append)
        self.collector.ooms = self.book.count
        self.collector.saw = lambda _node: self.book.look(None)
        self.settings = PageSettings()
        sources = PageSources(self.runtime, self.files, self.clock)
        self.pages = Pages(self.collector, self.book, sources, lambda: self.settings, self.events.append)

    def close(self) -> None:
        self.roster.close()

    async def later(self, seconds: float = 1.0) -> None:
        await self.clock.advance(seconds)

    def changed(self) -> None:
        self.roster.is_stale = True


def open_below(observed: Observed) -> int:
    """Descriptors of files in the tree."""
    places = Path("/proc/self/fd").iterdir()
    return sum(os.path.realpath(one).startswith(str(observed.tree.root)) for one in list(places))


@pytest.fixture(params=[1, 2])
def observed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Observed]:
    found = Observed(tmp_path, request.param)
    yield found
    found.close()


async def test_a_pass_finds_pods_containers_and_what_is_above_them(observed: Observed) -> None:
    """OBS-03, OBS-04."""
    observed.runtime.add_pod("web", ("main", "side"))
    found = await observed.collector.sample()
    (pod,) = found.pods

    assert (pod.key, pod.uid, pod.group, pod.is_ours) == ("default/web", "uid-web", "/kepd/pod-web", True)
    assert [(one.name, one.group, one.image, one.started_at_s) for one in pod.containers] == [
        ("main", "/kepd/pod-web/c-web-main-0", "busybox:1", 5.0),
        ("side", "/kepd/pod-web/c-web-side-0", "busybox:1", 5.0),
    ]
    assert pod.figures is not None
    assert pod.containers[0].figures.cpu_ns is not None
    assert [one.name for one in pod.interfaces] == ["eth0"]
    assert [one.group for one in found.parents] == ["/kepd"]
    assert (found.node.processors, found.node.oom_kills, found.node.memory.total) == (2, 3, 1000 << 10)
    assert found.version == observed.tree.version


async def test_readers_within_a_second_share_a_pass(observed: Observed) -> None:
    """OBS-01."""
    observed.runtime.add_pod("web")
    together = await asyncio.gather(*(observed.collector.sample() for _ in range(5)))
    asked = observed.files.asked
    again = await observed.collector.sample()
    await observed.later()
    later = await observed.collector.sample()

    assert all(one is together[0] for one in (*together, again))
    assert later is not again
    assert asked < observed.files.asked <= 2 * asked


async def test_a_reader_that_leaves_ends_no_pass(observed: Observed) -> None:
    """OBS-13."""
    observed.runtime.add_pod("web")
    leaving = asyncio.create_task(observed.collector.sample())
    await asyncio.sleep(0)
    leaving.cancel()
    found = await observed.collector.sample()

    assert len(found.pods) == 1


async def test_the_runtime_is_asked_after_changes_alone(observed: Observed) -> None:
    observed.runtime.add_pod("web")
    await observed.collector.sample()
    calls = list(observed.runtime.calls)
    await observed.later()
    await observed.collector.sample()
    assert observed.runtime.calls == calls
    observed.runtime.add_container("web", "late")
    observed.changed()
    await observed.later()
    found = await observed.collector.sample()

    assert [one.name for one in found.pods[0].containers] == ["main", "late"]
    assert observed.runtime.calls[len(calls) :] == ["ListPodSandbox", "ListContainers", "ContainerStatus"]


async def test_without_an_answer_of_the_runtime_what_is_known_stays(observed: Observed) -> None:
    observed.runtime.add_pod("web")
    await observed.collector.sample()
    observed.runtime.is_away = True
    observed.changed()
    await observed.later()
    found = await observed.collector.sample()

    assert len(found.pods) == 1
    assert observed.collector.errors == {"runtime": 1}


async def test_files_that_go_during_a_pass_are_no_fault(observed: Observed) -> None:
    """OBS-07."""
    observed.runtime.add_pod("web", ("main", "side"))
    await observed.collector.sample()
    for number in (errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.EOPNOTSUPP):
        observed.files.refusals = {"cpu.pressure": number, "memory.stat": number}
        await observed.later()
        found = await observed.collector.sample()
        one = found.pods[0].containers[0]
        assert (one.figures.working_set, one.is_whole) == (None, True)
    assert observed.collector.errors == {}


async def test_other_refusals_are_counted_and_cost_that_figure_alone(observed: Observed) -> None:
    observed.runtime.add_pod("web")
    observed.files.refusals = {"memory.stat": errno.EIO}
    found = await observed.collector.sample()
    one = found.pods[0].containers[0]

    assert (one.figures.working_set, one.is_whole) == (None, False)
    assert one.figures.cpu_ns is not None
    assert observed.collector.errors["group"] > 0


async def test_one_that_ended_stays_for_a_while_and_leaves_nothing_open(observed: Observed) -> None:
    """OBS-10: 200 that live for a moment."""
    observed.runtime.add_pod("web")
    await observed.collector.sample()
    before = open_below(observed)
    for number in range(200):
        name = observed.runtime.add_container("web", "short", number)
        observed.changed()
        await observed.later()
        await observed.collector.sample()
        observed.runtime.end(name)
        observed.changed()
        await observed.later()
        found = await observed.collector.sample()
        assert any(one.id == name and one.ended_s is not None for one in found.pods[0].containers)
    observed.changed()
    await observed.later(301)
    found = await observed.collector.sample()

    assert [one.name for one in found.pods[0].containers] == ["main"]
    assert open_below(observed) == before


async def test_a_pod_that_is_gone_leaves_nothing_open(observed: Observed) -> None:
    before = open_below(observed)
    observed.keep_ended_s = 0.0
    observed.runtime.add_pod("web")
    await observed.collector.sample()
    observed.runtime.sandboxes.clear()
    observed.runtime.containers.clear()
    for _ in range(2):
        observed.changed()
        await observed.later()
        found = await observed.collector.sample()

    assert found.pods == ()
    assert observed.roster.pods == {}
    observed.files.close()
    assert open_below(observed) == before


async def test_above_the_bound_of_open_files_figures_are_the_same(tmp_path: Path) -> None:
    """OBS-06."""
    few, many = Observed(tmp_path / "few", most_open=5), Observed(tmp_path / "many")
    found = []
    for one in (few, many):
        one.runtime.add_pod("web", ("a", "b"))
        await one.collector.sample()
        await one.later()
        found.append(await one.collector.sample())
    kept = few.files.kept
    few.close()
    many.close()

    assert kept == 5
    assert found[0].pods == found[1].pods


async def test_a_pod_on_the_nodes_network_has_no_interfaces(observed: Observed) -> None:
    """NIF-02."""
    observed.runtime.add_pod("host")
    observed.runtime.on_host_network.add("s-host")
    found = await observed.collector.sample()

    assert found.pods[0].interfaces == ()


async def test_a_process_that_ended_is_not_taken_for_the_one_that_got_its_number(observed: Observed) -> None:
    """NIF-03."""
    observed.runtime.add_pod("web")
    await observed.collector.sample()
    place = observed.tree.root / "proc/100"
    place.rename(observed.tree.root / "proc/gone")
    (observed.tree.root / "proc/gone/net/dev").unlink()
    observed.tree.process(100, "/elsewhere")
    await observed.later()
    found = await observed.collector.sample()

    assert found.pods[0].interfaces == ()


async def test_sandboxes_that_are_no_pods_are_never_shown(observed: Observed) -> None:
    """OBS-08."""
    observed.runtime.add_pod("web")
    observed.runtime.sandboxes["s-web"].labels.clear()
    found = await observed.collector.sample()

    assert found.pods == ()


async def test_an_answer_about_a_sandbox_that_is_no_json_costs_that_pod_alone(observed: Observed) -> None:
    for name in ("odd", "web"):
        observed.runtime.add_pod(name)
    observed.runtime.pids["s-odd"] = "x"  # type: ignore[assignment]
    found = await observed.collector.sample()

    assert [pod.name for pod in found.pods] == ["web"]


def oom(observed: Observed, instance: str, kills: int) -> None:
    text = {1: {"memory_oom_control": b"oom_kill %d\n" % kills}, 2: {"memory_events": b"oom_kill %d\n" % kills}}
    observed.tree.group(f"/kepd/pod-web/{instance}", **text[observed.tree.version])


def state(instance: str, reason: str = "OOMKilled") -> PodState:
    one = ContainerState(name="main", image="i", id=instance, state=TERMINATED, reason=reason)
    return PodState(namespace="default", name="web", uid="uid-web", phase="Running", containers=(one,))


async def test_a_kill_counts_once_whoever_tells_of_it(observed: Observed) -> None:
    """OOM-02, OOM-03, OOM-08."""
    observed.runtime.add_pod("web")
    oom(observed, "c-web-main-0", 0)
    await observed.collector.sample()
    oom(observed, "c-web-main-0", 1)
    observed.book.heard("c-web-main-0")
    await observed.later()
    found = await observed.collector.sample()
    observed.book.ended(state("c-web-main-0"), "main", "c-web-main-0")
    observed.book.ended(state("c-web-main-0"), "main", "c-web-main-0")

    assert found.pods[0].containers[0].ooms == 1
    assert [one.reason for one in observed.events] == ["ContainerOOM"]


async def test_an_end_that_is_heard_of_before_a_kill_is_told_is_told_with_it(observed: Observed) -> None:
    """OOM-08."""
    observed.runtime.add_pod("web")
    oom(observed, "c-web-main-0", 0)
    await observed.collector.sample()
    oom(observed, "c-web-main-0", 1)
    await observed.collector.look_at("c-web-main-0")
    assert observed.book.looked("c-web-main-0")
    assert observed.events == []
    for _ in range(2):
        observed.book.ended(state("c-web-main-0"), "main", "c-web-main-0")
    observed.book.tell("c-web-main-0")

    assert [one.message.rpartition(", ")[2] for one in observed.events] == ["the container ended"]


async def test_a_word_that_the_counter_denies_counts_nothing(observed: Observed) -> None:
    """OOM-02: the runtime tells it of each container of a pod without memory, and calls their ends so as well."""
    observed.runtime.add_pod("web")
    oom(observed, "c-web-main-0", 0)
    await observed.collector.sample()
    observed.book.heard("c-web-main-0")
    await observed.later()
    await observed.collector.sample()
    observed.book.ended(state("c-web-main-0"), "main", "c-web-main-0")

    assert observed.book.count("c-web-main-0") == 0
    assert observed.events == []


async def test_a_word_counts_where_the_end_leaves_the_counter_no_time(observed: Observed) -> None:
    """OOM-02."""
    observed.runtime.add_pod("web")
    oom(observed, "c-web-main-0", 0)
    await observed.collector.sample()
    observed.book.heard("c-web-main-0")
    observed.book.ended(state("c-web-main-0"), "main", "c-web-main-0")

    assert observed.book.count("c-web-main-0") == 1


async def test_an_end_that_is_heard_of_again_counts_once_though_its_instance_was_never_seen(
    observed: Observed,
) -> None:
    """OOM-02: it died between two looks, and its pod says so until the next start; also over a restart."""
    observed.runtime.add_pod("web")
    for number in (1, 2):
        for _ in range(3):
            observed.book.ended(state(f"c-web-main-{number}"), "main", f"c-web-main-{number}")
            await observed.later()
            await observed.collector.sample()
            observed.book.forget()
        await observed.book.save()
        observed.begin()
        await observed.book.load()
    observed.book.ended(state("c-web-main-2"), "main", "c-web-main-2")

    assert observed.book.pods["uid-web"].containers["main"].totals == {"unknown": 2}


async def test_kills_outside_of_pods_are_the_nodes(observed: Observed) -> None:
    """OOM-07: those of containers are not, whoever's counter moved first."""
    observed.runtime.add_pod("web")
    collector, book = observed.collector, observed.book

    def saw(node: NodeFigures) -> None:
        book.look(None)
        book.look_at_node(node.oom_kills)

    collector.saw = saw
    found = []
    for of_container, of_node in ((0, 3), (1, 3), (1, 4), (1, 6), (3, 8)):
        oom(observed, "c-web-main-0", of_container)
        observed.tree.write("proc/vmstat", b"oom_kill %d\n" % of_node)
        await observed.later()
        await collector.sample()
        found.append(dict(book.of_node))
    reasons = [one.reason for one in observed.events if one.reason == "SystemOOM"]

    assert found == [
        {"pods": 0, "node": 0}, {"pods": 1, "node": 0}, {"pods": 1, "node": 0}, {"pods": 1, "node": 2},
        {"pods": 3, "node": 2},
    ]  # fmt: skip
    assert reasons == ["SystemOOM"]


async def test_a_container_that_dies_again_and_again_costs_no_passes(observed: Observed) -> None:
    """OOM-03: nobody reads, and the runtime tells of kill after kill."""
    observed.runtime.add_pod("web")
    oom(observed, "c-web-main-0", 1)
    await observed.collector.look_at("c-web-main-0")
    observed.book.heard("c-web-main-0")
    listed, files = len(observed.runtime.calls), observed.files.asked
    for number in range(1, 50):
        name = observed.runtime.add_container("web", "main", number)
        await observed.collector.look_at(name)
        observed.book.heard(name)
    asked = observed.files.asked - files
    await observed.later()
    await observed.collector.sample()

    assert observed.runtime.calls[listed:].count("ListPodSandbox") == 1, "for the sample"
    assert asked == 0
    assert sum(observed.book.pods["uid-web"].containers["main"].totals.values()) == 50


async def test_counts_survive_a_restart_of_kepd_and_of_the_container(observed: Observed) -> None:
    """OOM-05."""
    observed.runtime.add_pod("web")
    oom(observed, "c-web-main-0", 2)
    await observed.collector.sample()
    await observed.book.save()
    observed.begin()
    await observed.book.load()
    await observed.later()
    await observed.collector.sample()
    observed.runtime.end("c-web-main-0")
    observed.book.ended(state("c-web-main-0"), "main", "c-web-main-0")
    second = observed.runtime.add_container("web", "main", 1)
    oom(observed, second, 1)
    observed.changed()
    await observed.later()
    await observed.collector.sample()
    text = (await observed.pages.cadvisor({})).body.decode()
    lines = [line for line in text.splitlines() if line.startswith("kepd_container_oom_kills_total")]

    assert sum(float(line.rpartition(" ")[2]) for line in lines) == 3


async def test_a_full_disk_keeps_counts_in_memory_until_it_has_room(observed: Observed) -> None:
    observed.runtime.add_pod("web")
    oom(observed, "c-web-main-0", 1)
    await observed.collector.sample()
    observed.records.is_full = True
    await observed.book.save()
    observed.records.is_full = False
    assert observed.records.files == {}
    await observed.book.save()

    assert list(observed.records.files) == ["ooms/uid-web.json"]


async def test_records_of_pods_that_are_gone_go(observed: Observed) -> None:
    observed.runtime.add_pod("web")
    oom(observed, "c-web-main-0", 1)
    await observed.collector.sample()
    await observed.book.save()
    observed.roster.pods.clear()
    observed.book.forget()
    await observed.book.save()

    assert observed.records.files == {}


async def test_a_record_that_cannot_be_read_is_no_reason_to_stop(observed: Observed) -> None:
    observed.records.files["ooms/x.json"] = b"{"
    await observed.book.load()

    assert observed.book.pods == {}


async def test_a_page_is_packed_for_who_takes_that_and_tells_of_what_it_left_out(observed: Observed) -> None:
    """OBS-11, OBS-12."""
    observed.runtime.add_pod("web", tuple(f"c{number}" for number in range(30)))
    plain = await observed.pages.cadvisor({})
    packed = await observed.pages.cadvisor({"accept-encoding": "gzip, br"})
    observed.settings = PageSettings(most_series=100)
    for _ in range(2):
        await observed.pages.cadvisor({})

    assert (plain.is_packed, packed.is_packed) == (False, True)
    assert len(packed.body) < len(plain.body) / 10
    (event,) = observed.events
    assert event.reason == "SeriesDropped"
    assert "maxSeries (100)" in event.message
    families = {one.name: one for one in observed.pages.metrics.families()}
    assert families["kepd_observe_dropped_series"].samples
    assert families["kepd_observe_series"].samples[0].value > 0
    assert families["kepd_observe_pass_seconds"].samples
    assert families["kepd_observe_files"].samples[0].value > 0


async def test_sizes_of_layers_are_asked_for_beside_the_pass(observed: Observed) -> None:
    """VSU-01."""
    observed.runtime.add_pod("web")
    await observed.pages.cadvisor({})
    await asyncio.sleep(0.05)
    await observed.later()
    text = (await observed.pages.cadvisor({})).body.decode()
    asked = observed.runtime.calls.count("ListContainerStats")

    assert "container_fs_usage_bytes" in text
    assert asked == 1


def test_events_of_kills_are_a_kind_of_their_own() -> None:
    assert RuntimeEvent(EventKind.OOM, "c").kind == "oom"


async def test_a_group_that_does_nothing_costs_little_and_what_it_does_is_seen(observed: Observed) -> None:
    """OBS-03: cost follows what happens. Figures that the kernel brings up to date late are looked at twice more."""
    observed.runtime.add_pod("web")
    tree, group = observed.tree, "/kepd/pod-web/c-web-main-0"
    count, processor = {1: ("pids_current", "cpuacct_usage"), 2: ("pids_current", "cpu_stat")}[tree.version]

    async def threads() -> tuple[int | None, int]:
        before = observed.files.asked
        await observed.later()
        (pod,) = (await observed.collector.sample()).pods
        return pod.containers[0].figures.threads, observed.files.asked - before

    first = [await threads() for _ in range(4)]
    tree.group(group, **{count: b"7\n"})
    unseen = await threads()
    tree.group(group, **{count: b"7\n", processor: b"99\n" if tree.version == 1 else b"usage_usec 99\n"})
    seen = [await threads() for _ in range(4)]
    tree.group(group, **{count: b"9\n", processor: b"99\n" if tree.version == 1 else b"usage_usec 99\n"})
    await observed.later(WHOLE_EVERY_S)
    late = await threads()

    assert first[0][1] > first[3][1] + 20, "of a still group few files are read"
    assert unseen == first[3]
    assert [one for one, _ in seen] == [7, 7, 7, 7]
    assert [one > first[3][1] for _, one in seen] == [True, True, True, False]
    assert late[0] == 9, "all are read now and then"


async def test_below_a_pod_at_rest_nothing_is_read_until_it_does_something(observed: Observed) -> None:
    """OBS-03: what a container does its pod does as well; what waits is looked at until it does no more."""
    observed.runtime.add_pod("web", ["main", "side"])
    tree, pod, group = observed.tree, "/kepd/pod-web", "/kepd/pod-web/c-web-main-0"
    processor = "cpuacct_usage" if tree.version == 1 else "cpu_stat"
    calm = b"some avg10=0.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
    waits = dict.fromkeys(("cpu_pressure", "memory_pressure", "io_pressure"), calm)

    def does(used: int, threads: int) -> None:
        text = f"usage_usec {used}\n" if tree.version == 2 else f"{used}\n"
        tree.group(pod, **waits, **{processor: text.encode()})
        tree.group(group, **waits, **{processor: text.encode(), "pids_current": b"%d\n" % threads})

    async def look() -> tuple[int | None, int]:
        before = observed.files.asked
        await observed.later()
        (found,) = (await observed.collector.sample()).pods
        return found.containers[0].figures.threads, observed.files.asked - before

    does(1, 2)
    at_rest = [await look() for _ in range(6)][-1]
    does(2, 3)
    seen = [await look() for _ in range(6)]
    tree.group(pod, **{**waits, "io_pressure": calm.replace(b"0.00", b"1.00")}, **{processor: b"usage_usec 2\n"})
    waiting = [await look() for _ in range(6)][-1]

    assert [one for one, _ in seen] == [3] * 6
    assert seen[0][1] > at_rest[1] + 15
    assert seen[-1] == (3, at_rest[1])
    assert waiting[1] > at_rest[1], "it waits, so all of it is looked at"


async def test_a_limit_that_comes_later_is_seen_with_what_it_holds_back(observed: Observed) -> None:
    """CMX-01: three files of each group say that a limit changed."""
    tree, group = observed.tree, "/kepd/pod-web/c-web-main-0"
    observed.runtime.add_pod("web")
    none, some = {
        1: ({"cpu_cfs_quota_us": b"-1\n"}, {"cpu_cfs_quota_us": b"50000\n"}),
        2: ({"cpu_max": b"max 100000\n"}, {"cpu_max": b"50000 100000\n"}),
    }[tree.version]
    tree.group(group, **none)
    for _ in range(5):
        await observed.later()
        (before,) = (await observed.collector.sample()).pods
    tree.group(group, **some)
    await observed.later(60.0)
    (after,) = (await observed.collector.sample()).pods

    assert (before.containers[0].figures.limits.quota_us, before.containers[0].figures.periods) == (None, None)
    assert after.containers[0].figures.limits.quota_us == 50_000
    assert after.containers[0].figures.periods is not None


async def test_who_waits_in_no_pod_waits_in_no_container(observed: Observed) -> None:
    """OBS-03: of a container at work the files of pressure are read once those of its pod say something new."""
    observed.runtime.add_pod("web")
    tree, places = observed.tree, ("/kepd/pod-web", "/kepd/pod-web/c-web-main-0")
    processor = "cpuacct_usage" if tree.version == 1 else "cpu_stat"
    turns = count()

    async def waited(pod: int, container: int) -> tuple[int | None, int]:
        for group, total in zip(places, (pod, container), strict=True):
            text = b"some avg10=0.00 avg60=0.00 avg300=0.00 total=%d\n" % total
            pressures = dict.fromkeys(("cpu_pressure", "memory_pressure", "io_pressure"), text)
            used = f"{next(turns)}\n" if tree.version == 1 else f"usage_usec {next(turns)}\n"
            tree.group(group, **pressures, **{processor: used.encode()})
        before = observed.files.asked
        await observed.later()
        (found,) = (await observed.collector.sample()).pods
        return found.containers[0].figures.io_pressure.waiting_us, observed.files.asked - before

    calm = [await waited(1, 1) for _ in range(6)][-1]
    unread = await waited(1, 2)
    seen = await waited(2, 2)

    assert unread == calm, "the kernel cannot say this of a real pod"
    assert seen == (2, calm[1] + 3)


async def test_a_turn_of_a_pass_reads_few_groups(observed: Observed, monkeypatch: pytest.MonkeyPatch) -> None:
    """OBS-05."""
    for number in range(40):
        observed.runtime.add_pod(f"p{number}", ("main", "side"))
    turns: list[set[str]] = []
    in_thread, read_all = asyncio.to_thread, observed.files.read_all

    async def turn(do: Callable[..., object], *of: object) -> object:
        turns.append(set())
        return await in_thread(do, *of)

    def read(paths: Sequence[str]) -> tuple[list[bytes | None], list[OSError]]:
        turns[-1] |= {path.partition("/kepd/")[2].rpartition("/")[0] for path in paths} - {""}
        return read_all(paths)

    monkeypatch.setattr(asyncio, "to_thread", turn)
    monkeypatch.setattr(observed.files, "read_all", read)
    await observed.collector.sample()

    assert len(set().union(*turns)) == 40 * 4
    assert max(map(len, turns)) <= 50
