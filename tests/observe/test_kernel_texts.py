# SPDX-License-Identifier: Apache-2.0
"""The kernel's texts, whole, of either version, cut off, absurd (OBS-07)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.observe.kernel.group_text import DeviceUse, read_figures, read_limits
from agent.observe.kernel.hierarchies import Mount, neighbour, read_groups, read_mounts
from agent.observe.kernel.node_text import NodeMemory, count_processors, read_interfaces, read_memory
from agent.observe.kernel.numbers import chosen, limit, number
from agent.observe.kernel.pressure_text import NOTHING, PressureFigures, read_pressure

MIB = 1 << 20
LEGACY = {
    "cpuacct.usage": b"5653327258\n",
    "cpuacct.stat": b"user 561\nsystem 3\n",
    "cpu.stat": b"nr_periods 288\nnr_throttled 252\nthrottled_time 6613528565\nnr_bursts 1\nburst_time 7\nwait_sum 9\n",
    "cpu.cfs_quota_us": b"20000\n",
    "cpu.cfs_period_us": b"100000\n",
    "cpu.shares": b"204\n",
    "memory.stat": (
        b"cache 1\nrss 2\nmapped_file 3\ninactive_file 5\ntotal_cache 8392704\ntotal_rss 57344\ntotal_mapped_file 0\n"
        b"total_swap 0\ntotal_pgfault 1143\ntotal_pgmajfault 2\ntotal_inactive_file 8388608\ntotal_active_file 4096\n"
    ),
    "memory.usage_in_bytes": b"9080832\n",
    "memory.max_usage_in_bytes": b"10711040\n",
    "memory.failcnt": b"0\n",
    "memory.limit_in_bytes": b"67108864\n",
    "memory.memsw.limit_in_bytes": b"67108864\n",
    "memory.soft_limit_in_bytes": b"9223372036854771712\n",
    "memory.kmem.usage_in_bytes": b"409600\n",
    "memory.oom_control": b"oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
    "blkio.throttle.io_service_bytes": b"8:0 Read 10\n8:0 Write 20\n8:0 Sync 5\n8:0 Total 30\nTotal 30\n",
    "blkio.throttle.io_serviced": b"8:0 Read 1\n8:0 Write 2\nTotal 3\n",
    "pids.current": b"3\n",
    "pids.max": b"max\n",
    "cgroup.procs": b"10\n11\n",
    "cpu.pressure": b"some avg10=1.50 avg60=0.20 avg300=0.00 total=1500000\nfull avg10=0.00 avg60=0.00 total=20\n",
}
UNIFIED = {
    "cpu.stat": (
        b"usage_usec 100\nuser_usec 60\nsystem_usec 40\nnr_periods 3\nnr_throttled 1\nthrottled_usec 7\nnr_bursts 0\n"
        b"burst_usec 0\n"
    ),
    "cpu.max": b"max 100000\n",
    "cpu.weight": b"100\n",
    "memory.stat": b"anon 5\nfile 6\nkernel 7\nfile_mapped 1\ninactive_file 4\nactive_file 2\npgfault 9\n",
    "memory.current": b"20\n",
    "memory.peak": b"30\n",
    "memory.events": b"low 0\nhigh 0\nmax 2\noom 1\noom_kill 3\noom_group_kill 1\n",
    "memory.events.local": b"low 0\nmax 2\noom 1\noom_kill 3\n",
    "memory.max": b"max\n",
    "memory.swap.current": b"0\n",
    "memory.swap.max": b"max\n",
    "memory.low": b"0\n",
    "io.stat": b"254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n253:1 \n",
    "pids.current": b"1\n",
    "pids.max": b"100\n",
    "cgroup.procs": b"7\n",
}


def test_a_group_of_version_1_counts_with_everything_below_it() -> None:
    """CMX-01."""
    limits = read_limits(1, LEGACY)
    found = read_figures(1, LEGACY, limits)

    assert (found.cpu_ns, found.user_ns, found.system_ns) == (5653327258, 5_610_000_000, 30_000_000)
    assert (found.periods, found.throttled_periods, found.throttled_ns, found.burst_ns) == (288, 252, 6613528565, 7)
    assert (limits.quota_us, limits.period_us, limits.shares) == (20_000, 100_000, 204)
    assert (found.usage, found.working_set, found.rss, found.cache) == (9080832, 692224, 57344, 8392704)
    assert (limits.memory, limits.memory_and_swap, limits.reservation) == (64 * MIB, 64 * MIB, 0)
    assert (found.kernel, found.max_usage, found.failures, found.oom_kills) == (409600, 10711040, 0, 4)
    assert (found.threads, limits.threads, found.processes) == (3, 0, 2)
    assert found.devices == (DeviceUse("8:0", 10, 20, 1, 2),)
    assert found.cpu_pressure == PressureFigures(1_500_000, 20, 1.5, 0.0)
    assert found.memory_pressure == NOTHING


def test_a_group_of_version_1_without_a_hierarchy_counts_by_itself() -> None:
    own = {**LEGACY, "memory.stat": b"cache 1\nrss 2\nmapped_file 3\ninactive_file 5\nswap 4\n"}
    found = read_figures(1, own)

    assert (found.cache, found.rss, found.mapped, found.swap, found.inactive_file) == (1, 2, 3, 4, 5)


def test_a_group_of_version_2() -> None:
    limits = read_limits(2, UNIFIED)
    found = read_figures(2, UNIFIED, limits)

    assert (found.cpu_ns, found.user_ns, found.system_ns) == (100_000, 60_000, 40_000)
    assert (found.periods, limits.quota_us, limits.period_us) == (None, None, 100_000)
    assert limits.shares == 2597
    assert (found.usage, found.working_set, found.rss, found.cache, found.kernel) == (20, 16, 5, 6, 7)
    assert (limits.memory, limits.memory_and_swap) == (0, 0)
    assert (found.failures, found.oom_kills, found.group_kills, found.own_ooms) == (2, 3, 1, 1)
    assert found.devices == (DeviceUse("254:0", 1, 2, 3, 4),)


def test_a_quota_of_version_2_is_throttled() -> None:
    texts = {**UNIFIED, "cpu.max": b"25000 100000\n", "memory.max": b"100\n", "memory.swap.max": b"50\n"}
    limits = read_limits(2, texts)
    found = read_figures(2, texts, limits)

    assert (limits.quota_us, found.periods, found.throttled_ns, limits.memory_and_swap) == (25_000, 3, 7000, 150)


def test_the_lines_of_a_kernel_may_stand_anywhere() -> None:
    """Where a key stood the last time is a guess, not a promise."""
    keys = {"one": b"a", "two": b"b", "none": b"c"}
    texts = (b"x 1\ny 2\nd 3\n", b"a 1\nb 2\nd 3\n", b"a 4\nb 5\nd 3\n", b"b 6\na 7\nd 3\n", b"a 1\nd 2\n", b"", b"a")
    found = [chosen(text, keys) for text in texts]

    assert [one["one"] for one in found] == [None, 1, 4, 7, 1, None, None]
    assert [one["two"] for one in found] == [None, 2, 5, 6, None, None, None]
    assert {one["none"] for one in found} == {None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"some avg10=1.00 avg60=0.00 avg300=0.00 total=7\n", PressureFigures(7, None, 1.0, None)),
        (b"full avg10=2.00 avg60=0.00 avg300=0.00 total=8\n", PressureFigures(None, 8, None, 2.0)),
        (b"some avg10=x avg60=0.00 avg300=0.00 total=7\nfull avg10=0 avg60=0 avg300=0 total=q\n", NOTHING),
        (b"some avg10=1.00 avg60=0.00", NOTHING),
    ],
)
def test_pressure_that_was_cut_off_is_what_is_left(text: bytes, expected: PressureFigures) -> None:
    assert read_pressure(text) == expected


TEXTS = st.dictionaries(
    st.sampled_from([*LEGACY, *UNIFIED]),
    st.one_of(
        st.none(), st.binary(max_size=300),
        st.sampled_from([text[:cut] for text in (*LEGACY.values(), *UNIFIED.values()) for cut in (1, 9, 40)]),
    ),
)  # fmt: skip


@given(version=st.sampled_from((1, 2)), texts=TEXTS)
def test_rubbish_gives_figures_that_are_missing_and_nothing_else(version: int, texts: dict[str, bytes | None]) -> None:
    """OBS-07."""
    found = read_figures(version, texts, read_limits(version, texts))

    assert all(value is None or value >= 0 for value in (found.cpu_ns, found.usage, found.working_set, found.oom_kills))


@given(version=st.sampled_from((1, 2)), first=TEXTS, then=TEXTS)
def test_figures_of_what_changed_are_those_of_all(
    version: int, first: dict[str, bytes | None], then: dict[str, bytes | None]
) -> None:
    """CMX-01."""
    limits = read_limits(version, LEGACY if version == 1 else UNIFIED)
    whole = {1: LEGACY, 2: UNIFIED}[version]
    before, after = {**whole, **first}, {**whole, **then}
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]

    found = read_figures(version, after, limits, read_figures(version, before, limits), changed)

    assert found == read_figures(version, after, limits)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"7\n", 7),
        (b"", None),
        (b"-1", None),
        (b"7 8", None),
        (b"9" * 5000, None),
        ("٣".encode(), None),
        (b"0x7", None),
    ],
)
def test_a_number_is_digits(text: bytes, expected: int | None) -> None:
    assert number(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [(b"max", 0), (b"-1\n", 0), (b"9223372036854771712", 0), (b"5", 5), (b"x", None)]
)
def test_no_limit_is_0_and_no_text_is_nothing(text: bytes, expected: int | None) -> None:
    assert limit(text) == expected


@given(st.binary(max_size=2000))
def test_rubbish_of_the_node_gives_nothing(text: bytes) -> None:
    read_pressure(text)
    read_interfaces(text)
    read_memory(text)
    read_mounts(text.decode("utf-8", "replace"))
    read_groups(text.decode("utf-8", "replace"))
    count_processors(text)


MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:3 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /kubepods /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/uni\\040fied rw,relatime - cgroup2 cgroup2 rw
42 31 0:38 / /again rw,relatime - cgroup2 cgroup2 rw
cut off
"""


def test_mounts_are_found_wherever_they_are() -> None:
    """OBS-04: shared by controllers, bound from below, with a space in a name."""
    found = read_mounts(MOUNTS)

    assert found.mounts == {
        "cpu": Mount("/sys/fs/cgroup/cpu,cpuacct"),
        "cpuacct": Mount("/sys/fs/cgroup/cpu,cpuacct"),
        "memory": Mount("/sys/fs/cgroup/memory", "/kubepods"),
        "": Mount("/sys/fs/cgroup/uni fied"),
    }
    assert found.version == 1
    assert found.folder("cpu", "/a/b") == "/sys/fs/cgroup/cpu,cpuacct/a/b"
    assert found.folder("memory", "/kubepods/pod1") == "/sys/fs/cgroup/memory/pod1"
    assert found.folder("memory", "/kubepodsother") is None
    assert found.folder("pids", "/a") is None


def test_groups_of_a_process_are_by_controller() -> None:
    text = "9:name=systemd:/x\n4:memory:/a\n2:cpu,cpuacct:/b\n0::/c\nrubbish\n"

    assert read_groups(text) == {"memory": "/a", "cpu": "/b", "cpuacct": "/b", "": "/c"}


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("/kepd/pod1/s1", "/kepd/pod1/c1"),
        ("/kepd.slice/pod.slice/cri-containerd-s1.scope", "/kepd.slice/pod.slice/cri-containerd-c1.scope"),
        ("/elsewhere", None),
    ],
)
def test_containers_stand_beside_their_sandbox(group: str, expected: str | None) -> None:
    assert neighbour(group, "s1", "c1") == expected


NET_DEV = b"""Inter-|   Receive                 |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 100 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0
  eth0: 1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0
 veth1: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0
  cut: 1 2
"""


def test_interfaces_of_others_are_left_out() -> None:
    """NIF-01."""
    (found,) = read_interfaces(NET_DEV)

    assert found.name == "eth0"
    assert (found.received_bytes, found.received_packets, found.received_errors, found.received_dropped) == (
        1000, 10, 1, 2,
    )  # fmt: skip
    assert (found.sent_bytes, found.sent_packets, found.sent_errors, found.sent_dropped) == (2000, 20, 3, 4)


def test_memory_of_the_node_is_in_bytes() -> None:
    text = b"MemTotal:       100 kB\nMemFree:  20 kB\nSwapTotal: 0 kB\nHugePages_Total:       0\n"

    assert read_memory(text) == NodeMemory(102400, 20480, None, 0, None)
