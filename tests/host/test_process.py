# SPDX-License-Identifier: Apache-2.0
"""The daemon as a process: start, signals, exit codes, bad input."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.process import HEAD, ITSELF, PROGRAMS, Kepd, NotifySocket
from tests.ports import take_port


@pytest.fixture
def kepd(short_path: Path, free_port: int) -> Iterator[Kepd]:
    with Kepd(short_path, free_port, prefix=ITSELF) as daemon:
        yield daemon


def run_to_end(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(PROGRAMS / "kepd"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def test_without_a_runtime_it_runs_and_says_so(kepd: Kepd) -> None:
    """Bad input: and it connects when the socket appears (tests/node shows that with a real one)."""
    kepd.start("--planes", "")
    status, body = kepd.wait(lambda: "does not answer" in (page := kepd.get("/readyz"))[1] and page, "the first look")
    live = kepd.get("/livez")

    assert status == 503
    assert f"[-] runtime: unix://{kepd.folder}/none.sock does not answer: No such file or directory" in body
    assert live == (200, "ok\n")
    assert kepd.end() == 0
    assert not kepd.socket.exists()


def test_drafts_of_a_kepd_that_died_are_swept_at_start(kepd: Kepd) -> None:
    """NP-6: also those that no plane looks after; what pods have there is theirs."""
    state = kepd.folder / "state"
    drafts = [
        state / ".config.last.yaml.abcd1234",
        state / ".instance.x_9zzzzz",
        state / "services/.snapshot.bin.abcd1234",
    ]
    of_pods = state / "pods/pods/u/.cache.abcd1234"
    for path in (*drafts, of_pods):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")
    kepd.start("--planes", "").wait(lambda: kepd.get("/livez")[0], "answers")

    assert [path for path in drafts if path.exists()] == []
    assert of_pods.exists()


def test_no_core_file_gets_the_memory_of_kepd(kepd: Kepd) -> None:
    """Also where no unit forbids it."""
    kepd.start().wait(lambda: kepd.get("/livez")[0], "answers")
    assert kepd.process is not None
    limits = Path(f"/proc/{kepd.process.pid}/limits").read_text().splitlines()
    (line,) = [line for line in limits if line.startswith("Max core file size")]

    assert line.split()[4:6] == ["0", "0"]


def test_bad_configuration_ends_with_78_and_every_complaint(short_path: Path) -> None:
    bad = short_path / "bad.yaml"
    bad.write_text(HEAD + "images: {maxParalelPulls: 1, enabled: maybe}\nnode: {name: A}\n")
    done = run_to_end("run", "--config", str(bad))
    unreadable = run_to_end("run", "--config", str(short_path / "none.yaml"))

    assert done.returncode == unreadable.returncode == 78
    assert len(done.stderr.splitlines()) == 3
    assert all(line.startswith(f"{bad}:") for line in done.stderr.splitlines())
    assert unreadable.stderr == f"{short_path}/none.yaml: cannot be read: No such file or directory\n"


def test_ten_megabytes_of_aliases_are_one_line(short_path: Path) -> None:
    bomb = short_path / "bomb.yaml"
    rows = [f"a{row}: &a{row} [{','.join([f'*a{row - 1}'] * 9)}]" for row in range(1, 12)]
    bomb.write_text("\n".join(["a0: &a0 [x]", *rows, "#" * 3_000_000]))
    huge = short_path / "huge.yaml"
    huge.write_text("a: [" + "*a," * 3_500_000 + "]")
    for path in (bomb, huge):
        done = run_to_end("config", "check", "--config", str(path))

        assert done.returncode == 78
        assert len(done.stderr.splitlines()) == 1


def test_a_socket_in_use_is_refused_by_name_and_a_stale_one_replaced(kepd: Kepd) -> None:
    kepd.socket.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(kepd.socket))
        live.listen()
        kepd.start("--planes", "")
        assert kepd.process is not None
        assert kepd.process.wait(10) == 6
        assert f"kepd: {kepd.socket} is in use by uid {os.geteuid()} (pid {os.getpid()}" in kepd.log.read_text()

    kepd.start("--planes", "")
    kepd.wait(lambda: kepd.get("/livez")[0] == 200, "an answer")
    assert kepd.ctl("get", "planes").returncode == 0


def test_a_taken_http_port_is_told_and_retried(kepd: Kepd) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", kepd.port))
        taken.listen()
        kepd.start("--planes", "")
        kepd.wait(lambda: kepd.socket.exists(), "the API")
        text = f"api.httpAddress 127.0.0.1:{kepd.port} cannot be listened on: Address already in use"
        kepd.wait(lambda: text in kepd.log.read_text(), "the reason in the log")
    kepd.wait(lambda: kepd.get("/livez")[0] == 200, "an answer once the port is free")


def test_hup_reloads_all_or_nothing(kepd: Kepd) -> None:
    """CFG-05."""
    kepd.start("--planes", "")
    kepd.wait(lambda: kepd.get("/livez")[0] == 200, "an answer")
    assert kepd.process is not None

    kepd.write_config(f"unix://{kepd.folder}/other.sock", "images: {maxParallelPulls: 9}\ntelemetry: {verbosity: 3}\n")
    kepd.process.send_signal(signal.SIGHUP)
    kepd.wait(lambda: "config_reloaded" in kepd.log.read_text(), "the reload")
    values = {one["path"]: one["value"] for one in kepd.json("config", "show")}
    assert (values["images.maxParallelPulls"], values["telemetry.verbosity"]) == (9, 3)
    assert values["runtime.endpoint"] == f"unix://{kepd.folder}/none.sock"
    assert "waiting_for_restart=runtime.endpoint,runtime.imageEndpoint" in kepd.log.read_text()

    kepd.config.write_text(HEAD + "images: {maxParallelPulls: many}\ntelemetry: {verbosity: 0}\n")
    kepd.process.send_signal(signal.SIGHUP)
    kepd.wait(lambda: "config_reload_refused" in kepd.log.read_text(), "the refusal")
    values = {one["path"]: one["value"] for one in kepd.json("config", "show")}
    assert (values["images.maxParallelPulls"], values["telemetry.verbosity"]) == (9, 3)
    assert "maxParallelPulls: 9" in (kepd.folder / "state" / "config.last.yaml").read_text()


def test_the_service_manager_hears_ready_reload_status_watchdog_and_stop(short_path: Path, free_port: int) -> None:
    """SYS-01 to SYS-04."""
    manager = NotifySocket(short_path / "notify")
    environment = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "2000000"}
    with Kepd(short_path, free_port, prefix=ITSELF, **environment) as kepd:
        kepd.start("--planes", "")
        assert "STATUS=runtime: " in manager.next("READY=1")
        manager.next("WATCHDOG=1")
        assert kepd.process is not None
        kepd.process.send_signal(signal.SIGHUP)
        assert "MONOTONIC_USEC=" in manager.next("RELOADING=1")
        manager.next("READY=1")
        kepd.process.send_signal(signal.SIGTERM)
        manager.next("STOPPING=1")
        manager.next("EXTEND_TIMEOUT_USEC=")
        assert kepd.process.wait(10) == 0
    manager.close()


def test_term_tells_watchers_to_come_again(kepd: Kepd) -> None:
    """A stream would never end by itself, so the end does not wait for it."""
    kepd.start("--planes", "")
    kepd.wait(lambda: kepd.get("/livez")[0] == 200, "an answer")
    watcher = subprocess.Popen(
        [str(PROGRAMS / "kepctl"), "--endpoint", str(kepd.socket), "api", "grpc.health.v1.Health/Watch"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watcher.stdout is not None
    watcher.stdout.readline()
    assert kepd.end(within_s=10) == 0
    _, complaint = watcher.communicate(timeout=10)

    assert watcher.returncode == 4
    assert "Traceback" not in complaint


def test_a_reload_before_there_is_anything_to_reload_does_no_harm(kepd: Kepd) -> None:
    kepd.start("--planes", "")
    assert kepd.process is not None
    kepd.wait(lambda: "SigCgt" in Path(f"/proc/{kepd.process.pid}/status").read_text(), "a process")
    for _ in range(200):
        if kepd.socket.exists():
            break
        if ignores_hup(kepd.process.pid):
            kepd.process.send_signal(signal.SIGHUP)
        time.sleep(0.005)
    kepd.wait(lambda: kepd.get("/livez")[0] == 200, "an answer")


def ignores_hup(pid: int) -> bool:
    """Whether the program has begun and says what becomes of the signal."""
    masks = [
        line.split()[1]
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line[:6] in ("SigIgn", "SigCgt")
    ]
    return any(int(mask, 16) & 1 for mask in masks)


def test_directories_that_are_not_ours_alone_are_refused_and_left_as_they_are(short_path: Path, free_port: int) -> None:
    shared = short_path / "run"
    shared.mkdir()
    shared.chmod(0o777)
    with Kepd(short_path, free_port, prefix=ITSELF) as kepd:
        kepd.start("--planes", "")
        assert kepd.process is not None
        assert kepd.process.wait(10) == 6
        assert f"kepd: {shared} belongs to uid" in kepd.log.read_text()
        assert shared.stat().st_mode & 0o777 == 0o777


def test_what_was_edited_meanwhile_does_not_ride_along_with_config_set(kepd: Kepd) -> None:
    kepd.start("--planes", "")
    kepd.wait(lambda: kepd.get("/livez")[0] == 200 and kepd.socket.exists(), "an answer")
    kepd.write_config("unix:///other.sock", "images: {maxParallelPulls: 9}\n")
    done = kepd.ctl("config", "set", "telemetry.verbosity=3")

    assert done.stdout == "telemetry.verbosity: 2 -> 3\n", done.stderr


def test_a_socket_from_the_service_manager_is_taken_over(short_path: Path, free_port: int) -> None:
    """SYS-08: connects made while the daemon starts wait instead of failing."""
    kepd = Kepd(short_path, free_port, prefix=ITSELF)
    kepd.socket.parent.mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(kepd.socket))
    listener.listen()
    starter = (
        "import os,sys; os.dup2(int(sys.argv[1]), 3); os.set_inheritable(3, True); "
        "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1', LISTEN_FDNAMES='api'); "
        "os.execv(sys.argv[2], sys.argv[2:])"
    )
    command = [str(PROGRAMS / "kepd"), "run", "--config", str(kepd.config), "--planes", ""]
    with kepd.log.open("a") as log:
        kepd.process = subprocess.Popen(
            [sys.executable, "-c", starter, str(listener.fileno()), *command],
            stdout=log, stderr=log, pass_fds=[listener.fileno()],
        )  # fmt: skip
    with kepd:
        assert kepd.ctl("get", "nodes", "-o", "name").stdout == "node/n1\n"
        assert kepd.end() == 0
        assert kepd.socket.exists(), "the socket belongs to the manager"
    listener.close()


@pytest.mark.node
def test_two_daemons_do_not_run_one_plane_for_one_runtime(short_path: Path, free_port: int) -> None:
    with Kepd(short_path, free_port, prefix=ITSELF) as first:
        first.start("--planes", "pods")
        first.wait(lambda: first.get("/livez")[0] == 200, "an answer")
        other = short_path / "other"
        other.mkdir()
        with Kepd(other, take_port(), endpoint=f"unix://{short_path}/none.sock", prefix=ITSELF) as second:
            second.start("--planes", "pods")
            page = second.wait(lambda: (got := second.get("/readyz"))[1].count("is held by process") and got, "refusal")
            assert f"is held by process {first.process.pid if first.process else 0}" in page[1]
