# SPDX-License-Identifier: Apache-2.0
"""The lab against the machine it runs on: real containers start, faults are real, nothing stays behind.

Owns: the proof that tests which use the lab stand on firm ground.
Never: skips when a part of the lab can't start; that is a failure.
"""

import concurrent.futures
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from tests.lab import STAY, Fault, Image, Lab, LabError, Layer, Pod, Throttle
from tests.lab.containerd import is_lowering_oom_score_refused
from tests.lab.containerd_config import ContainerdSettings, render_containerd_config
from tests.lab.cri import Cri
from tests.lab.images import build
from tests.lab.pace import Pace
from tests.lab.packages import find_programs
from tests.lab.place import Place
from tests.lab.registry import http_get
from tests.lab.sweep import cgroups, lab_processes, leftovers
from tests.lab.throttle import SOURCE_ROOT

pytestmark = pytest.mark.node

KIB = 1024
IMAGE = Image(name="lab/test", environment={"GREETING": "hello"})


@pytest.fixture
def parent() -> Iterator[Path]:
    """A directory with a short path for the labs of one test."""
    with tempfile.TemporaryDirectory(prefix="kl") as directory:
        yield Path(directory)
        assert list(Path(directory).iterdir()) == []


def eventually(is_true: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < deadline, f"still false after {within_s} s"
        time.sleep(0.01)


def fetch(lab: Lab, path: str, within_s: float = 5.0) -> tuple[int, bytes]:
    return http_get(lab.netns, lab.throttle.port, path, within_s)


def blob_path(lab: Lab, image: Image) -> str:
    """The path of the image's last layer; the image is pushed."""
    lab.push(image)
    return f"/v2/{image.name}/blobs/{lab.build(image).layer_digests[-1]}"


# pods


def test_a_pod_lives_from_pull_to_removal(lab: Lab) -> None:
    lab.cri.pull(lab.push(IMAGE))
    pod = lab.run_pod("life")
    echo = 'echo "$GREETING from $HOSTNAME"; exec ' + " ".join((STAY[0], STAY[1], f"'{STAY[2]}'"))
    container = pod.run("main", IMAGE.reference(lab.registry.address), ["/bin/sh", "-c", echo])
    assert container.wait_log("hello") == "hello from life\n"
    result = container.exec(["/bin/sh", "-c", "id -u; echo oops >&2; exit 3"])
    assert (result.exit_code, result.stdout, result.stderr) == (3, "0\n", "oops\n")
    assert pod.ip.rpartition(".")[0] == lab.place.subnet.rpartition(".")[0]
    container.stop()
    assert container.wait_exited() == 0
    pod.remove()
    assert not [path for path in cgroups(lab.place) if container.id in path.name or pod.id in path.name]


def test_pods_reach_each_other_and_the_lab_reaches_them(lab: Lab) -> None:
    reference = lab.preload(IMAGE)
    server, client = lab.run_pod("server"), lab.run_pod("client")
    serve = "mkdir /tmp/w; echo found >/tmp/w/x; httpd -f -p 80 -h /tmp/w"
    server.run("main", reference, ["/bin/sh", "-c", serve])
    asked = client.run("main", reference)
    eventually(lambda: asked.exec(["wget", "-qO-", f"http://{server.ip}/x"]).stdout == "found\n")
    with lab.netns.connect(80, server.ip) as connection:
        connection.sendall(b"GET /x HTTP/1.0\r\n\r\n")
        assert connection.recv(KIB).startswith(b"HTTP/1.")
    for pod in (server, client):
        pod.remove()


def test_a_preloaded_image_needs_no_registry(lab: Lab) -> None:
    """LAB-16"""
    reference = lab.preload(Image(name="lab/preloaded", labels={"a": "b"}), "registry.invalid/lab/preloaded:1")
    assert lab.cri.has_image(reference)
    pod = lab.run_pod("preloaded")
    container = pod.create("main", reference, ["/bin/sh", "-c", "echo $WHAT"], environment={"WHAT": "ran"})
    container.start()
    assert container.wait_exited() == 0
    assert container.wait_log("ran") == "ran\n"
    pod.remove()
    lab.cri.remove_image(reference)


def test_containers_outlive_a_restart_and_a_crash_of_containerd(lab: Lab) -> None:
    """LAB-25"""
    pod = lab.run_pod("outlives")
    container = pod.run("main", lab.preload(IMAGE))
    started_at = container.status().started_at
    lab.containerd.restart()
    lab.containerd.kill()
    assert not lab.containerd.is_running
    with pytest.raises(grpc.RpcError):
        container.status()
    lab.containerd.start()
    eventually(lambda: container.exec(["/bin/true"]).exit_code == 0)
    assert container.status().started_at == started_at
    pod.remove()


# throttle


def test_total_bandwidth_holds_for_parallel_layers(lab: Lab, throttle: Throttle) -> None:
    """LAB-13: the sum over all connections stays below the limit."""
    rate, size = 400 * KIB, 150 * KIB
    image = Image.sized("lab/total", size, size, size)
    lab.push(image)
    throttle.limit(total_bytes_s=rate)
    started = time.monotonic()
    lab.cri.pull(lab.throttled(image))
    took_s = time.monotonic() - started
    blobs = throttle.requests(r"^GET .*/blobs/")
    passed = sum(request.body_bytes for request in blobs)
    assert passed >= 3 * size
    assert passed / rate <= took_s < 2 * passed / rate + 1
    assert throttle.peak_in_flight(r"/blobs/") == 3


def test_connection_bandwidth_lets_parallel_layers_add_up(lab: Lab, throttle: Throttle) -> None:
    rate, size = 200 * KIB, 150 * KIB
    image = Image.sized("lab/each", size, size, size)
    lab.push(image)
    throttle.limit(per_connection_bytes_s=rate)
    started = time.monotonic()
    lab.cri.pull(lab.throttled(image))
    took_s = time.monotonic() - started
    layers = [request for request in throttle.requests(r"^GET .*/blobs/") if request.body_bytes >= size]
    assert len(layers) == 3
    assert size / rate <= took_s < 3 * size / rate
    assert all(request.ended_s and request.ended_s - request.started_s >= size / rate for request in layers)


def test_a_limit_lifted_during_a_pull_takes_effect_at_once(lab: Lab, throttle: Throttle) -> None:
    image = Image.sized("lab/lifted", 2000 * KIB)
    lab.push(image)
    throttle.limit(total_bytes_s=20 * KIB)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        started = time.monotonic()
        pull = pool.submit(lab.cri.pull, lab.throttled(image))
        eventually(lambda: any(request.body_bytes > 5 * KIB for request in throttle.requests("/blobs/")))
        assert not pull.done()
        throttle.limit()
        pull.result(30)
    assert time.monotonic() - started < 20


def test_pace_is_kept_exactly_over_many_pieces() -> None:
    pace = Pace()
    ends = [pace.reserve(100, 1000, now_s) for now_s in (5.0, 5.0, 5.15, 9.0)]
    assert ends == pytest.approx([5.1, 5.2, 5.3, 9.1])
    assert pace.reserve(10**9, None, 9.0) == 9.0


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500])
def test_an_injected_status_fails_pulls_until_it_is_cleared(lab: Lab, throttle: Throttle, status: int) -> None:
    image = Image(name=f"lab/status-{status}")
    lab.push(image)
    with throttle.fault(Fault(kind="status", pattern="/manifests/", status=status, headers={"Retry-After": "7"})):
        with pytest.raises(grpc.RpcError) as failure:
            lab.cri.pull(lab.throttled(image))
        assert fetch(lab, f"/v2/{image.name}/manifests/1")[0] == status
    assert {request.status for request in throttle.requests("/manifests/")} == {status}
    assert failure.value.code() in {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNKNOWN}
    lab.cri.pull(lab.throttled(image))


def test_a_hanging_download_goes_on_when_the_fault_is_cleared(lab: Lab, throttle: Throttle) -> None:
    image = Image.sized("lab/hang", 300 * KIB)
    lab.push(image)
    throttle.inject(Fault(kind="hang", pattern="GET .*/blobs/", after_bytes=100 * KIB))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pull = pool.submit(lab.cri.pull, lab.throttled(image))
        eventually(lambda: any(request.body_bytes == 100 * KIB for request in throttle.requests("/blobs/")))
        assert throttle.in_flight("/blobs/") >= 1
        assert not pull.done()
        throttle.clear()
        pull.result(20)
    eventually(lambda: throttle.in_flight() == 0)


def test_a_client_that_leaves_a_hanging_request_is_noticed(lab: Lab, throttle: Throttle) -> None:
    throttle.inject(Fault(kind="hang"))
    with pytest.raises(TimeoutError):
        fetch(lab, "/v2/", within_s=0.1)
    eventually(lambda: throttle.in_flight() == 0)
    assert [request.status for request in throttle.requests()] == [None]


def test_faults_strike_in_the_middle_of_a_body(lab: Lab, throttle: Throttle) -> None:
    path = blob_path(lab, Image.sized("lab/middle", 100 * KIB))
    whole = fetch(lab, path)[1]
    with throttle.fault(Fault(kind="reset", pattern="/blobs/", after_bytes=10 * KIB)), pytest.raises(ConnectionError):
        fetch(lab, path)
    with (
        throttle.fault(Fault(kind="truncate", pattern="/blobs/", after_bytes=10 * KIB)),
        pytest.raises(http.client.IncompleteRead) as truncated,
    ):
        fetch(lab, path)
    assert truncated.value.partial == whole[: 10 * KIB]
    with throttle.fault(Fault(kind="reset", pattern="/blobs/", times=1)):
        with pytest.raises(ConnectionError):
            fetch(lab, path)
        assert fetch(lab, path) == (200, whole)
    struck = [request.fault for request in throttle.requests("/blobs/")]
    assert struck == [None, "reset", "truncate", "reset", None]


def test_a_redirect_never_ends_and_a_delay_does(lab: Lab, throttle: Throttle) -> None:
    image = Image(name="lab/redirect")
    lab.push(image)
    with throttle.fault(Fault(kind="redirect", pattern="/manifests/")), pytest.raises(grpc.RpcError) as failure:
        lab.cri.pull(lab.throttled(image))
    assert "redirect" in failure.value.details()
    assert len(throttle.requests("/manifests/")) >= 5
    with throttle.fault(Fault(kind="delay", pattern="/v2/$", delay_s=0.3)):
        started = time.monotonic()
        assert fetch(lab, "/v2/")[0] == 200
        assert time.monotonic() - started >= 0.3


def test_the_throttle_refuses_what_it_cannot_do(throttle: Throttle) -> None:
    with pytest.raises(LabError, match="no regular expression"):
        Fault(kind="hang", pattern="(")
    with pytest.raises(LabError, match="unknown kind"):
        Fault(kind="explode")  # type: ignore[arg-type]
    with pytest.raises(LabError, match="at least 1"):
        throttle.limit(total_bytes_s=0)


# images and configuration


def test_images_have_the_same_digest_wherever_they_are_built(tmp_path: Path) -> None:
    busybox = find_programs().paths["busybox"]
    shared = Layer(name="shared", size_bytes=10 * KIB)
    one = Image(name="lab/one", layers=(shared, Layer(name="one", size_bytes=KIB)))
    two = Image(name="lab/two", layers=(shared,))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, again = build(one, busybox, tmp_path / "a"), build(one, busybox, tmp_path / "b")
    other = build(two, busybox, tmp_path / "a")
    assert first.digest == again.digest
    assert build(one, busybox, tmp_path / "a") == first
    assert first.layer_digests[:2] == other.layer_digests
    assert first.digest != other.digest


def settings(version: tuple[int, int], is_restricted: bool) -> ContainerdSettings:
    return ContainerdSettings(
        version=version,
        pause_image="127.0.0.1:1/pause:1",
        runc=Path("/runc"),
        cni_directory=Path("/cni"),
        snapshotter="overlayfs",
        restrict_oom_score_adj=is_restricted,
        max_concurrent_downloads=5,
    )


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((1, 6), ("version = 2", 'sandbox_image = "127.0.0.1:1/pause:1"', 'bin_dir = "/cni"')),
        ((2, 0), ("version = 3", 'sandbox = "127.0.0.1:1/pause:1"', 'bin_dir = "/cni"')),
        ((2, 1), ("version = 3", '[plugins."io.containerd.nri.v1.nri"]', 'bin_dirs = ["/cni"]')),
    ],
)
def test_configuration_follows_the_version_of_containerd(version: tuple[int, int], expected: tuple[str, ...]) -> None:
    place = Place(parent=Path("/x"), number=0x1234)
    for is_restricted, word in ((True, "true"), (False, "false")):
        text = render_containerd_config(place, settings(version, is_restricted))
        assert f"restrict_oom_score_adj = {word}" in text
        assert "max_concurrent_downloads = 5" in text
        assert all(line in text for line in expected)


def test_oom_scores_are_restricted_only_where_lowering_is_refused(lab: Lab) -> None:
    """LAB-7"""
    own = Path("/proc/self/oom_score_adj")
    before = own.read_text("ascii").strip()
    try:
        own.write_text("-998", "ascii")
        is_refused = False
        own.write_text(before, "ascii")
    except PermissionError:
        is_refused = True
    assert is_lowering_oom_score_refused() == is_refused
    written = lab.place.containerd_config.read_text("utf-8")
    assert f"restrict_oom_score_adj = {str(is_refused).lower()}" in written


# errors


def test_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEPD_LAB_BIN", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("tests.lab.packages.SYSTEM_DIRECTORIES", ("/bin/nothing",))
    with pytest.raises(LabError, match=r"containerd, ctr.*apt-get install busybox-static containerd docker-registry"):
        find_programs()


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(LabError, match=r"needs root .*uid 1000"):
        find_programs()


def test_a_containerd_that_cannot_start_shows_the_end_of_its_log(parent: Path) -> None:
    with Lab.start(parent=parent) as own:
        own.containerd.stop()
        own.place.containerd_config.write_text("version = 2\nroot = 7\n", "utf-8")
        with pytest.raises(LabError, match=r"(?s)ended with status 1 .*failed to unmarshal TOML") as failure:
            own.containerd.start()
        assert str(own.place.log("containerd")) in str(failure.value)


def test_a_directory_too_deep_for_sockets_is_refused(tmp_path: Path) -> None:
    """LAB-9"""
    deep = tmp_path / ("x" * 80)
    deep.mkdir()
    with pytest.raises(LabError, match="107 are allowed"):
        Lab.start(parent=deep)
    assert list(deep.iterdir()) == []


# the end


def test_nothing_stays_after_containerd_was_killed_under_a_running_pod(parent: Path) -> None:
    """LAB-32"""
    own = Lab.start(parent=parent)
    with own:
        pod = own.run_pod("orphan")
        pod.run("main", own.preload(IMAGE))
        own.containerd.kill()
        sockets = own.containerd.shim_sockets()
        alive = "\n".join(own.leftovers())
        assert len(sockets) == 1
        assert all(word in alive for word in ("process", "mount", "cgroup", "file", "directory", "containerd-shim"))
    assert own.leftovers() == []
    assert not any(path.exists() for path in sockets)
    own.close()


def test_a_lab_ends_with_pods_running_and_parts_that_hang(parent: Path) -> None:
    own = Lab.start(parent=parent)
    with own:
        own.run_pod("left").run("main", own.preload(IMAGE))
        own.registry.process.kill()
        own.throttle.process.signal(signal.SIGSTOP)
        own.throttle.process.kill()
    assert own.leftovers() == []


def test_labs_run_side_by_side(lab: Lab, parent: Path) -> None:
    with Lab.start(parent=parent) as other:
        names = {(each.place.name, each.place.bridge, each.place.subnet, each.endpoint) for each in (lab, other)}
        assert len({part for name in names for part in name}) == 8
        here, there = lab.run_pod("same"), other.run_pod("same")
        mine = here.run("main", lab.preload(IMAGE))
        there.run("main", other.preload(IMAGE))
        assert not lab_processes(lab.place) & lab_processes(other.place)
    assert other.leftovers() == []
    assert mine.exec(["/bin/true"]).exit_code == 0
    here.remove()


def test_labs_that_start_and_end_at_the_same_time_leave_each_other_alone(parent: Path) -> None:
    def live_briefly(_: int) -> list[str]:
        with Lab.start(parent=parent) as own:
            own.run_pod("brief")
        return own.leftovers()

    with concurrent.futures.ThreadPoolExecutor(max_workers=3) as pool:
        assert list(pool.map(live_briefly, range(6))) == [[]] * 6


# python -m tests.lab


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text("utf-8").strip()


def start_entry(parent: Path, *more: str) -> tuple[subprocess.Popen[str], dict[str, object]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.lab", "--parent", str(parent), *more],
        cwd=SOURCE_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


@pytest.mark.parametrize("way", ["SIGTERM", "SIGINT", "end of input"])
def test_the_entry_holds_a_lab_and_cleans_up(parent: Path, way: str) -> None:
    process, described = start_entry(parent, "--image", "lab/entry:2=1000")
    with process:
        assert described["images"] == {"lab/entry": "127.0.0.1:5055/lab/entry:2"}
        assert Path(str(described["endpoint"]).removeprefix("unix://")).is_socket()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        if way == "end of input":
            assert process.stdin is not None
            process.stdin.close()
        else:
            process.send_signal(signal.Signals[way])
        assert process.wait(20) == 0
    assert not Path(str(described["directory"])).exists()
    assert not [path for path in Path("/sys/fs/cgroup").glob("*/*") if path.name == described["name"]]


def test_the_next_lab_cleans_up_after_one_whose_owner_was_killed(parent: Path) -> None:
    """LAB-35"""
    process, described = start_entry(parent)
    place = Place(parent=parent, number=int(str(described["name"])[-4:], 16))
    with process, Cri(place.containerd_socket) as cri:
        Pod(place, cri, "orphan")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
    assert {"containerd", "docker-registry", "busybox"} <= {name_of(pid) for pid in lab_processes(place)}
    with Lab.start(parent=parent):
        pass
    assert leftovers(place) == []
