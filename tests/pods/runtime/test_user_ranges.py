# SPDX-License-Identifier: Apache-2.0
"""Users of their own for pods: ranges that never meet, also after a crash, and what the runtime is told (SEC-07)."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.runtime.features import RuntimeFeatures
from agent.pods.run.disk.files import IdRanges
from agent.pods.runtime.cri_config import check_support
from agent.pods.runtime.environment import ConfigProblem
from agent.pods.runtime.user_ranges import RANGE_LENGTH, IdSource, decode_range, encode_range, free_range, id_source
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import KnownRuntime, Slow, manifest, running
from tests.pods.pods import make_pod

POD = manifest(grace_s=1).replace(b"spec:\n", b"spec:\n  hostUsers: false\n")
SUPPORT = KnownRuntime(name="containerd", version="2.1.0", user_namespaces=frozenset({""}))


@given(taken=st.sets(st.integers(1, 20).map(lambda place: place << 16)), first=st.integers(0, 1 << 20))
def test_a_range_is_free_aligned_and_above_the_nodes_own(taken: set[int], first: int) -> None:
    found = free_range(taken, IdSource(first, 1 << 25))

    assert found is not None
    assert found not in taken
    assert (found % RANGE_LENGTH, found >= max(first, RANGE_LENGTH)) == (0, True)


def test_ranges_run_out() -> None:
    source = IdSource(100_000, 3 * RANGE_LENGTH)

    assert free_range([], source) == 131072
    assert free_range([131072, 196608], source) is None, "what is cut off at either end is no range"
    assert free_range([], IdSource(0, RANGE_LENGTH)) is None


def test_what_is_written_is_what_a_kubelet_writes() -> None:
    content = encode_range(131072)
    mapping = '[{"hostId":131072,"containerId":0,"length":65536}]'

    assert content.decode() == f'{{"uidMappings":{mapping},"gidMappings":{mapping}}}'
    assert decode_range(content) == 131072


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b'{"uidMappings":[],"gidMappings":[]}',
        encode_range(65536).replace(b"65536,", b"65537,"), encode_range(0), encode_range(65536)[:-20],
        b'{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}],"gidMappings":[]}',
    ],
)  # fmt: skip
def test_what_is_no_range_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # each has its own words
        decode_range(content)


@pytest.mark.parametrize(
    ("users", "groups", "expected"),
    [
        ("", "", IdSource()),
        ("other:100000:65536\n", "", IdSource()),
        ("kepd:131072:655360\n", "# ours\nkepd:131072:655360\n", IdSource(131072, 655360)),
    ],
)
def test_subordinate_ids_are_used_where_they_are_given(users: str, groups: str, expected: IdSource) -> None:
    assert id_source(users, groups, "kepd") == expected


@pytest.mark.parametrize("groups", ["", "kepd:65536:65536\n", "kepd:131072:65536\nkepd:262144:65536\n"])
def test_users_and_groups_must_be_given_alike(groups: str) -> None:
    with pytest.raises(ValueError, match="one and the same range to kepd; they give 131072\\+65536 and"):
        id_source("kepd:131072:65536\n", groups, "kepd")


class TestFiles:
    def test_a_pod_keeps_its_range_and_frees_it_with_its_directory(self, tmp_path: Path) -> None:
        none = (tmp_path / "none", tmp_path / "none")
        ranges = IdRanges(tmp_path, none)
        first, second = ranges.of("a"), ranges.of("b")
        again = IdRanges(tmp_path, none)

        assert (first, second) == (65536, 131072)
        assert (again.of("a"), again.of("b")) == (first, second), "also for a kepd that starts anew"
        (tmp_path / "pods" / "a" / "userns").unlink()
        assert again.of("c") == first

    def test_a_file_that_nobody_can_read_holds_new_pods_up(self, tmp_path: Path) -> None:
        """Its range may be in use: giving it away would let two pods share their users."""
        ranges = IdRanges(tmp_path, (tmp_path / "none", tmp_path / "none"))
        ranges.of("a")
        (tmp_path / "pods" / "a" / "userns").write_text("{")
        with pytest.raises(ConfigProblem, match="pods/a/userns cannot be read"):
            ranges.of("b")

    def test_when_all_are_taken_it_is_told(self, tmp_path: Path) -> None:
        given = tmp_path / "subuid"
        given.write_text("kepd:65536:65536\n")
        ranges = IdRanges(tmp_path, (given, given))
        ranges.of("a")
        with pytest.raises(ConfigProblem, match="no 65536 ids are left for its users: 65536 from 65536 on are taken"):
            ranges.of("b")


@pytest.mark.parametrize(
    ("features", "handler", "fits"),
    [
        (RuntimeFeatures(name="containerd", version="1.6.20"), "", False),
        (RuntimeFeatures(user_namespaces=frozenset({"", "runc"})), "", True),
        (RuntimeFeatures(user_namespaces=frozenset({"", "runc"})), "kata", False),
        (RuntimeFeatures(user_namespaces=frozenset({"kata"})), "kata", True),
    ],
)
def test_the_handler_must_know_user_namespaces(features: RuntimeFeatures, handler: str, fits: bool) -> None:
    pod = make_pod(hostUsers=False, runtimeClassName=handler)
    if fits:
        check_support(pod, features)
        return
    with pytest.raises(ConfigProblem, match="hostUsers false needs user namespaces, which") as told:
        check_support(pod, features)

    assert told.value.reason == "FailedCreatePodSandBox"


class Noting(Slow):
    """Remembers what sandboxes and containers were made with."""

    def __init__(self) -> None:
        super().__init__()
        self.sandboxes: list[Any] = []
        self.containers: list[Any] = []

    async def run_sandbox(self, config: Any, runtime_handler: str = "") -> str:
        self.sandboxes.append(config)
        return await super().run_sandbox(config, runtime_handler)

    async def create_container(self, sandbox_id: str, config: Any, sandbox_config: Any) -> str:
        self.containers.append(config)
        return await super().create_container(sandbox_id, config, sandbox_config)


async def test_a_pod_with_users_of_its_own(tmp_path: Path) -> None:
    cri, manifests = Noting(), FakeManifestDirectory({"/m/f.yaml": POD})
    async with running(cri, manifests, tmp_path / "logs", runtime=SUPPORT) as plane:
        await plane.until_phases(web="Running")
    options = cri.sandboxes[0].linux.security_context.namespace_options.userns_options
    inner = cri.containers[0]
    first = options.uids[0].host_id

    assert [(one.container_id, one.length) for one in (*options.uids, *options.gids)] == [(0, RANGE_LENGTH)] * 2
    assert inner.linux.security_context.namespace_options.userns_options == options
    assert {mount.uidMappings[0].host_id for mount in inner.mounts} == {first}
    assert stored(tmp_path) == [encode_range(first)]


def stored(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.glob("logs-pods/pods/*/userns")]


async def test_without_support_it_does_not_start_and_says_why(tmp_path: Path) -> None:
    cri, manifests = Noting(), FakeManifestDirectory({"/m/f.yaml": POD})
    async with running(cri, manifests, tmp_path / "logs") as plane:
        await plane.until(lambda: plane.events, "told")

        assert plane.events[0].reason == "FailedCreatePodSandBox"
        assert "hostUsers false needs user namespaces" in plane.events[0].message
        assert cri.sandboxes == []
        assert plane.pod().phase == "Pending"
