# SPDX-License-Identifier: Apache-2.0
"""Where the kubelet finds the proxy: lock, socket, link; upgrades and bypass without a failed call; a runtime away."""

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from agent.wire.cri import runtime_v1_pb2 as pb
from tests.host.process import PROGRAMS, Kepd, NotifySocket
from tests.lab import Image, Lab
from tests.node.kubelet import Kubelet, PodPlan
from tests.node.test_cri_proxy import SIDECAR, STAY
from tests.ports import take_port

SLOWER = ("sh", "-c", "trap 'sleep 5; exit 0' TERM; sleep 3600 & wait")

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kepd]:
    with Kepd(short_path, free_port, endpoint=lab.endpoint) as daemon:
        daemon.start("--planes", "proxy,images").wait_ready()
        yield daemon
        assert "Traceback" not in daemon.log.read_text(), daemon.log.read_text()


def cri(kepd: Kepd) -> Path:
    return kepd.folder / "run" / "cri"


def version(socket_path: Path) -> str:
    with grpc.insecure_channel(f"unix://{socket_path}") as channel:
        answer = channel.unary_unary("/runtime.v1.RuntimeService/Version")(b"", timeout=5, wait_for_ready=True)
    return pb.VersionResponse.FromString(answer).runtime_name


class Caller(threading.Thread):
    """A kubelet's housekeeping: a call every few milliseconds over one connection. `failed` shall stay empty."""

    def __init__(self, socket_path: Path) -> None:
        super().__init__()
        self.failed: list[str] = []
        self.calls = 0
        self.is_over = threading.Event()
        self._path = socket_path

    def run(self) -> None:
        options = [
            ("grpc.initial_reconnect_backoff_ms", 100),
            # For this client also how long an attempt to connect may take, as 5 s is for a kubelet.
            ("grpc.min_reconnect_backoff_ms", 5000),
            ("grpc.max_reconnect_backoff_ms", 3000),
            ("grpc.default_authority", "localhost"),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        with grpc.insecure_channel(f"unix://{self._path}", options=options) as channel:
            invoke = channel.unary_unary("/runtime.v1.RuntimeService/ListPodSandbox")
            while not self.is_over.wait(0.005):
                try:
                    invoke(b"", timeout=10)
                    self.calls += 1
                except grpc.RpcError as error:
                    self.failed.append(f"{error.code().name} {error.details()}")


@contextmanager
def calling(socket_path: Path) -> Iterator[Caller]:
    caller = Caller(socket_path)
    caller.start()
    try:
        yield caller
    finally:
        caller.is_over.set()
        caller.join()


def test_rights_are_those_of_the_runtime_and_only_root_gets_that_far(kepd: Kepd, lab: Lab) -> None:
    """PRX-7."""
    like = lab.place.containerd_socket.stat()
    entry, folder = (cri(kepd) / "cri.sock").stat(), cri(kepd).stat()

    assert stat.S_IMODE(folder.st_mode) == 0o700
    assert (stat.S_IMODE(entry.st_mode), entry.st_uid, entry.st_gid) == (0o660, like.st_uid, like.st_gid)
    assert (cri(kepd) / "kubelet.sock").readlink() == cri(kepd) / "cri.sock"


def test_a_dead_socket_keeps_nobody_from_starting(kepd: Kepd) -> None:
    """PRX-6."""
    kepd.end(signal.SIGKILL)
    assert (cri(kepd) / "cri.sock").exists()
    kepd.start("--planes", "proxy").wait_ready()

    assert version(cri(kepd) / "kubelet.sock") == "containerd"


def test_a_second_proxy_at_the_same_socket_is_told_who_is_there(kepd: Kepd, lab: Lab, free_port: int) -> None:
    """PRX-5: and the first one goes on."""
    folder = kepd.folder / "second"
    folder.mkdir()
    assert kepd.process is not None
    extra = f"proxy: {{socket: {cri(kepd)}/cri.sock, link: ''}}\n"
    with Kepd(folder, take_port(), endpoint=lab.endpoint, extra=extra) as second:
        second.start("--planes", "proxy")
        second.wait(lambda: f"is held by process {kepd.process.pid}" in second.log.read_text(), "the reason")  # type: ignore[union-attr]

    assert version(cri(kepd) / "cri.sock") == "containerd"


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_socket_that_somebody_takes_away_is_made_again(kepd: Kepd, how: str) -> None:
    """PRX-5: nobody could reach an inode without a name."""
    path = cri(kepd) / "cri.sock"
    before = path.stat().st_mtime_ns
    path.unlink()
    if how == "replaced":
        with socket.socket(socket.AF_UNIX) as thief:
            thief.bind(str(path))
    kepd.wait(
        lambda: path.exists() and path.stat().st_mtime_ns != before and "creates it again" in kepd.log.read_text(),
        "a new one",
    )
    kepd.wait_ready()

    assert version(cri(kepd) / "kubelet.sock") == "containerd"


def test_a_bypass_fails_no_call_and_so_does_the_way_back(kepd: Kepd, lab: Lab) -> None:
    """PRX-9: link to containerd, stop, start, link back."""
    link = cri(kepd) / "kubelet.sock"
    with calling(link) as caller:
        kepd.wait(lambda: caller.calls > 20, "calls")
        draft = link.with_name("draft")
        draft.symlink_to(lab.place.containerd_socket)
        draft.rename(link)
        kepd.wait(lambda: "proxy_superseded" in kepd.log.read_text(), "it is seen")
        assert kepd.end(signal.SIGTERM, within_s=30) == 0
        so_far = caller.calls
        kepd.wait(lambda: caller.calls > so_far + 20, "calls go on without us")
        kepd.start("--planes", "proxy,images").wait_ready()
        so_far = caller.calls
        kepd.wait(lambda: caller.calls > so_far + 20, "calls go on")

    assert caller.failed == []
    assert link.readlink() == cri(kepd) / "cri.sock"


def test_an_upgrade_fails_no_call_not_even_a_held_one(kepd: Kepd, lab: Lab, short_path: Path) -> None:
    """PRX-8, PRX-51: the new one takes the link, the old one ends what it holds."""
    image = lab.push(Image(name="node/upgrade"))
    lab.cri.pull(image)
    link = cri(kepd) / "kubelet.sock"
    kubelet = Kubelet(lab, link)
    plan = PodPlan("upgrade", [("side", STAY), ("main", SLOWER)], SIDECAR, grace_s=20, image=image)
    assert kubelet.sync(plan) == []
    folder = kepd.folder / "new"
    folder.mkdir()
    new = Kepd(folder, take_port(), endpoint=lab.endpoint, extra=f"proxy: {{link: {link}}}\n")
    shared = f"node.stateDirectory={kepd.folder}/state"
    with new, calling(link) as caller:
        kepd.wait(lambda: caller.calls > 20, "calls")
        stopping = [kubelet.stop(plan, name, 20) for name in ("side", "main")]
        kepd.wait(lambda: "held:" in kepd.ctl("get", "proxy").stderr, "side is held")
        new.start("--planes", "proxy,images", "--set", shared)
        kepd.wait(lambda: link.readlink() != cri(kepd) / "cri.sock", "the link is taken")
        assert kepd.end(signal.SIGTERM, within_s=30) == 0
        for one in stopping:
            one.result(30)
        so_far = caller.calls
        new.wait(lambda: caller.calls > so_far + 20, "calls go on")
        new.wait(lambda: new.get("/readyz")[0] == 200, "the queue is the new one's", within_s=30)
        side, main = (kubelet.status(plan, name) for name in ("side", "main"))
        kubelet.remove(plan)
    kubelet.close()

    assert caller.failed == []
    assert side.finished_at > main.finished_at


def test_other_processes_of_kepd_come_and_go_unnoticed(kepd: Kepd, lab: Lab) -> None:
    """PRX-4: the proxy is a process of its own."""
    folder = kepd.folder / "pods"
    folder.mkdir()
    other = Kepd(folder, take_port(), endpoint=lab.endpoint, extra=f"pods: {{logDirectory: {folder}/logs}}\n")
    with other, calling(cri(kepd) / "kubelet.sock") as caller:
        for number in (signal.SIGTERM, signal.SIGKILL):
            other.start("--planes", "pods").wait_ready()
            other.end(number)
        kepd.wait(lambda: caller.calls > 50, "calls")

    assert caller.failed == []


ACTIVATION = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.set_inheritable(3, True); "
    "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1', LISTEN_FDNAMES='cri'); "
    "os.execv(sys.argv[2], sys.argv[2:])"
)


class Activated(Kepd):
    """Started with a socket that somebody else holds."""

    listener: socket.socket

    def start(self, *flags: str) -> "Activated":
        command = [sys.executable, "-c", ACTIVATION, str(self.listener.fileno()), str(PROGRAMS / "kepd"), "run"]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, "--config", str(self.config), *flags],
                stdout=log, stderr=log, env=self.environment, text=True, pass_fds=[self.listener.fileno()],
            )  # fmt: skip
        return self


def test_a_restart_with_a_held_socket_fails_no_call(lab: Lab, short_path: Path, free_port: int) -> None:
    """IMG-X10, PRX-3: whoever connects in between waits until the new process accepts."""
    with Activated(short_path, free_port, endpoint=lab.endpoint) as kepd, socket.socket(socket.AF_UNIX) as listener:
        cri(kepd).mkdir(parents=True, mode=0o700)
        listener.bind(str(cri(kepd) / "cri.sock"))
        listener.listen(128)
        kepd.listener = listener
        kepd.start("--planes", "proxy").wait_ready()
        with calling(cri(kepd) / "kubelet.sock") as caller:
            kepd.wait(lambda: caller.calls > 20, "calls")
            assert kepd.end(signal.SIGTERM, within_s=30) == 0
            kepd.start("--planes", "proxy").wait_ready()
            so_far = caller.calls
            kepd.wait(lambda: caller.calls > so_far + 20, "calls go on")

    assert caller.failed == []


def test_a_plain_restart_is_over_before_a_node_becomes_unready(kepd: Kepd) -> None:
    """The kubelet reconnects by itself; what is lost is the time in between."""
    with calling(cri(kepd) / "kubelet.sock") as caller:
        kepd.wait(lambda: caller.calls > 20, "calls")
        began_s = time.monotonic()
        assert kepd.end(signal.SIGTERM, within_s=30) == 0
        kepd.start("--planes", "proxy,images")
        so_far = caller.calls
        kepd.wait(lambda: caller.calls > so_far + 5, "calls go on", within_s=15)
        gap_s = time.monotonic() - began_s

    assert gap_s < 15
    assert all(one.startswith("UNAVAILABLE") for one in caller.failed)


def test_without_a_runtime_the_codes_are_those_of_a_runtime_that_is_away(kepd: Kepd, lab: Lab) -> None:
    """PRX-27, PRX-52: and all is well when it is back, with gates as before."""
    link = cri(kepd) / "kubelet.sock"
    kubelet = Kubelet(lab, link)
    kubelet.call("Version", pb.VersionRequest())
    lab.containerd.stop()
    try:
        for _ in range(3):
            began_s = time.monotonic()
            with pytest.raises(grpc.RpcError) as failed:
                kubelet.call("Version", pb.VersionRequest())

            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
            assert time.monotonic() - began_s < 2.0
        assert kepd.get("/livez")[0] == 200
    finally:
        lab.containerd.start()
        lab.cri.reconnect()
    kepd.wait(lambda: _answers(kubelet), "an answer")
    kubelet.close()


def _answers(kubelet: Kubelet) -> bool:
    try:
        return bool(kubelet.call("Version", pb.VersionRequest()).runtime_name)
    except grpc.RpcError:
        return False


def test_ready_is_said_when_the_socket_answers(lab: Lab, short_path: Path, free_port: int) -> None:
    """PRX-3."""
    manager = NotifySocket(short_path / "notify")
    with Kepd(short_path, free_port, endpoint=lab.endpoint, NOTIFY_SOCKET=str(manager.path)) as kepd:
        kepd.start("--planes", "proxy,images")
        manager.next("READY=1")
        answered = version(cri(kepd) / "kubelet.sock")
    manager.close()

    assert answered == "containerd"


def test_a_kubelet_finds_a_socket_though_the_runtime_never_came(short_path: Path, free_port: int) -> None:
    """PRX-3: five seconds, then gates stay open and calls fail as they would direct."""
    with Kepd(short_path, free_port) as kepd:
        kepd.start("--planes", "proxy")
        kepd.wait(lambda: (cri(kepd) / "kubelet.sock").exists(), "the link", within_s=15)
        with (
            grpc.insecure_channel(f"unix://{cri(kepd)}/kubelet.sock") as channel,
            pytest.raises(grpc.RpcError) as failed,
        ):
            channel.unary_unary("/runtime.v1.RuntimeService/Version")(b"", timeout=5)
        kepd.wait(lambda: "gates are open" in kepd.get("/readyz?verbose")[1], "it says so")

    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert os.path.lexists(cri(kepd) / "kubelet.sock")


def test_people_see_calls_holds_and_advice(kepd: Kepd, lab: Lab) -> None:
    """kepctl get proxy, kepctl doctor, metrics."""
    settings = kepd.folder / "kubelet.yaml"
    settings.write_text("kind: KubeletConfiguration\n")
    assert kepd.ctl("config", "set", f"proxy.kubeletConfig={settings}").returncode == 0
    version(cri(kepd) / "kubelet.sock")
    doctor = kepd.ctl("doctor")
    table = kepd.ctl("get", "proxy")
    metrics = kepd.get("/metrics")[1]

    assert table.returncode == 0, table.stderr
    assert "Version" in table.stdout
    assert "serializeImagePulls" in table.stderr
    assert doctor.returncode == 1
    for key in ("containerRuntimeEndpoint", "serializeImagePulls", "registryPullQPS"):
        assert key in doctor.stdout
    assert 'kepd_proxy_requests_total{code="OK",method="Version"}' in metrics
    assert 'kepd_proxy_added_seconds_count{method="Version"}' in metrics
    assert "kepd_proxy_policy_errors_total 0.0" in metrics
    settings.write_text(
        f"containerRuntimeEndpoint: unix://{cri(kepd)}/kubelet.sock\nserializeImagePulls: false\nregistryPullQPS: 0\n"
    )
    done = kepd.ctl("doctor")
    assert (done.returncode, done.stderr) == (0, "nothing to change\n"), done.stdout


def test_a_hold_can_be_released_by_hand(kepd: Kepd, lab: Lab) -> None:
    """ReleaseHold."""
    image = lab.push(Image(name="node/release"))
    lab.cri.pull(image)
    kubelet = Kubelet(lab, cri(kepd) / "kubelet.sock")
    plan = PodPlan("release", [("main", STAY)], {"kepd.dev/prestop-sleep.main": "60s"}, image=image)
    assert kubelet.sync(plan) == []
    asked = kubelet.stop(plan, "main", 90)
    line = str(
        kepd.wait(lambda: [one for one in kepd.ctl("get", "proxy").stderr.splitlines() if "held:" in one], "held")
    )
    hold_id = line.split("held: ")[1].split(maxsplit=1)[0]
    done = kepd.ctl("api", "CriProxyService/ReleaseHold", f'{{"id": "{hold_id}"}}')
    asked.result(10)
    kubelet.remove(plan)
    kubelet.close()

    assert done.returncode == 0, done.stderr
    assert "sleep" in line
    assert kepd.ctl("api", "CriProxyService/ReleaseHold", '{"id": "h99"}').returncode != 0


def test_an_event_stream_outlives_a_restart_of_containerd(kepd: Kepd, lab: Lab) -> None:
    """PRX-50: containerd 1.6 has no such stream; that it says so is what passes here then."""
    image = lab.push(Image(name="node/events"))
    lab.cri.pull(image)
    pod = lab.run_pod("events")
    pod.run("main", image, STAY)
    options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"unix://{cri(kepd)}/kubelet.sock", options=options) as channel:
        stream = channel.unary_stream("/runtime.v1.RuntimeService/GetContainerEvents")(b"", timeout=60)
        seen: list[pb.ContainerEventResponse] = []
        ended: list[grpc.StatusCode] = []

        def read() -> None:
            try:
                seen.extend(map(pb.ContainerEventResponse.FromString, stream))
            except grpc.RpcError as error:
                ended.append(error.code())

        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(1.0)
        if ended:
            assert ended == [grpc.StatusCode.UNIMPLEMENTED]
            pod.remove()
            assert lab.containerd.version[:2] == (1, 6)
            return
        lab.containerd.restart()
        kepd.wait(lambda: any(one.pod_sandbox_status.id == pod.id for one in seen), "the state of the pod", 30.0)
        pod.remove()
        kepd.wait(lambda: seen[-1].container_event_type == pb.CONTAINER_DELETED_EVENT, "what came after", 30.0)
        assert ended == []
        stream.cancel()
        reader.join(10)
