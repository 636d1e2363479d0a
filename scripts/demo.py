# SPDX-License-Identifier: Apache-2.0
"""The demonstration behind scripts/run: examples/ on a real containerd, shown in the terminal.

Owns: choosing the containerd (the system's if one answers, else a private one of the lab), a kepd with directories of
its own, and taking everything away at the end, whichever way the end comes: Ctrl-C, a signal, or kepd dying early.
Never: touches pods, images or files that it did not make itself.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.lab import Image, Lab

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(sys.executable).parent
SYSTEM_SOCKET = Path("/run/containerd/containerd.sock")
IMAGE = "localhost/kepd/hello:1"
LIMIT_S = 30.0
CGROUPS_GO_WITHIN_S = 5.0


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def show(*command: str) -> None:
    """Run a command of kepctl and print it with its output."""
    print(f"\n$ kepctl {' '.join(command)}", flush=True)
    subprocess.run([str(PROGRAMS / "kepctl"), *command], check=True)


def system_containerd_answers() -> bool:
    command = ["ctr", "-a", str(SYSTEM_SOCKET), "--connect-timeout", "2s", "version"]
    return SYSTEM_SOCKET.exists() and subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextmanager
def system_runtime(folder: Path) -> Iterator[str]:
    """The system's containerd, with the image of the examples for as long as we need it."""
    from tests.lab.images import build

    ctr = ["ctr", "-a", str(SYSTEM_SOCKET), "-n", "k8s.io", "images"]
    known = subprocess.run([*ctr, "ls", "-q", f"name=={IMAGE}"], check=True, capture_output=True, text=True).stdout
    if known.strip():
        yield f"unix://{SYSTEM_SOCKET}"
        return
    archive = build(Image(name="kepd/hello"), Path("/bin/busybox"), folder).archive(IMAGE, folder / "hello.tar")
    try:
        subprocess.run([*ctr, "import", str(archive)], check=True, capture_output=True)
        yield f"unix://{SYSTEM_SOCKET}"
    finally:
        subprocess.run([*ctr, "rm", IMAGE], check=False, capture_output=True)


@contextmanager
def private_runtime() -> Iterator[str]:
    """A containerd of our own in its own network namespace."""
    with Lab.start() as lab:
        lab.preload(Image(name="kepd/hello"), IMAGE)
        yield lab.endpoint


def write_configuration(folder: Path, endpoint: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(
        "apiVersion: config.kepd.dev/v1alpha1\nkind: KepdConfiguration\n"
        f"node: {{name: demo, stateDirectory: {folder}/state, runDirectory: {folder}/run}}\n"
        f"runtime: {{endpoint: '{endpoint}'}}\n"
        f"manifests: {{directory: {folder}/manifests}}\n"
        f"pods: {{logDirectory: {folder}/logs, cgroupRoot: kepd-demo-{os.getpid()}}}\n"
        "api: {httpAddress: '', readGroup: ''}\n"
        "images: {enabled: false}\nservices: {enabled: false}\n"
    )
    return path


@contextmanager
def daemon(folder: Path, endpoint: str) -> Iterator[subprocess.Popen[bytes]]:
    """kepd with the examples. At the end its pods go first, then the daemon, then what is left of either."""
    manifests = folder / "manifests"
    manifests.mkdir()
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        # Without its mode: a clone may be writable for a group, and such manifests are refused.
        shutil.copyfile(path, manifests / path.name)
    command = [str(PROGRAMS / "kepd"), "run", "--config", str(write_configuration(folder, endpoint))]
    os.environ["KEPD_ENDPOINT"] = str(folder / "run" / "kepd.sock")
    with ExitStack() as stack:
        stack.callback(remove_cgroups, f"kepd-demo-{os.getpid()}")
        stack.callback(remove_pods_left, folder, endpoint)
        with (folder / "kepd.log").open("w") as log:
            # In a session of its own, so that Ctrl-C reaches this program alone and kepd lives to end the pods.
            kepd = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        stack.callback(end, kepd)
        try:
            yield kepd
        finally:
            for path in manifests.iterdir():
                path.unlink()
            wait_for(lambda: pods() == [], "the pods to end", kepd)


def end(kepd: subprocess.Popen[bytes]) -> None:
    """TERM, and KILL for one that does not heed it."""
    kepd.send_signal(signal.SIGTERM)
    try:
        kepd.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        kepd.kill()
        kepd.wait()


def remove_pods_left(folder: Path, endpoint: str) -> None:
    """Only if kepd did not come to it: a containerd that is not ours must not be left with our pods."""
    from agent.wire.cri import runtime_v1_pb2 as pb
    from tests.lab.cri import Cri

    with suppress(FileNotFoundError):
        instance = (folder / "state" / "instance").read_text("ascii").strip()
        cri = Cri(Path(endpoint.removeprefix("unix://")))
        for pod in cri.call("ListPodSandbox", pb.ListPodSandboxRequest()).items:
            if pod.annotations.get("kepd.dev/instance") == instance:
                cri.call("StopPodSandbox", pb.StopPodSandboxRequest(pod_sandbox_id=pod.id))
                cri.call("RemovePodSandbox", pb.RemovePodSandboxRequest(pod_sandbox_id=pod.id))
        cri.close()


def remove_cgroups(name: str) -> None:
    """The runtime leaves empty groups behind; what has only just ended may keep one for a moment."""
    deadline_s = time.monotonic() + CGROUPS_GO_WITHIN_S
    while left := [Path(path) for path, *_ in os.walk("/sys/fs/cgroup", topdown=False) if name in Path(path).parts]:
        for folder in left:
            with suppress(OSError):
                folder.rmdir()
        if time.monotonic() > deadline_s:
            say(f"these control groups could not be removed: {', '.join(map(str, left))}")
            return
        time.sleep(0.05)


def pods() -> list[dict[str, object]] | None:
    """None if the daemon does not answer, which is something else than no pods."""
    command = [str(PROGRAMS / "kepctl"), "api", "PodService/ListPods"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None
    found: list[dict[str, object]] = json.loads(done.stdout).get("pods", [])
    return found


def are_running() -> bool:
    found = pods()
    return bool(found) and all(pod["phase"] == "Running" for pod in found or ())


def wait_for(condition: Callable[[], object], what: str, kepd: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if kepd.poll() is not None:
            raise SystemExit(f"kepd ended with status {kepd.returncode} while this waited for {what}")
        if time.monotonic() > deadline_s:
            raise SystemExit(f"waited {LIMIT_S:g} s for {what} in vain")
        time.sleep(0.1)


def last_lines(folder: Path) -> str:
    """The newest line of every container."""
    lines = []
    for log in sorted((folder / "logs").glob("*/*/*.log")):
        text = log.read_text().splitlines()
        if text:
            lines.append(f"{log.parent.parent.name.split('_')[1]}/{log.parent.name}: {text[-1].split(' ', 3)[-1]}")
    return "\n".join(lines)


def interrupted(*_: object) -> None:
    """Only once: a second Ctrl-C must not end the cleaning up."""
    answer_signals(signal.SIG_IGN)
    raise KeyboardInterrupt


def answer_signals(answer: Callable[..., None] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, answer)


def demonstrate(stack: ExitStack, folder: Path, *, once: bool) -> None:
    if system_containerd_answers():
        say(f"using the containerd of this system at {SYSTEM_SOCKET}")
        endpoint = stack.enter_context(system_runtime(folder))
    else:
        say("no containerd answers on this system: starting a private one")
        endpoint = stack.enter_context(private_runtime())
    say("starting kepd with the manifests of examples/")
    kepd = stack.enter_context(daemon(folder, endpoint))
    wait_for(are_running, "the pods to run", kepd)
    show("status")
    show("get", "pods", "-o", "wide")
    show("get", "containers")
    wait_for(lambda: last_lines(folder), "a line from the containers", kepd)
    print(f"\n{last_lines(folder)}\n", flush=True)
    if not once:
        say("Ctrl-C ends it; try: kepctl --endpoint " + os.environ["KEPD_ENDPOINT"] + " get pods")
        subprocess.run([str(PROGRAMS / "kepctl"), "get", "pods", "-w"], check=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/run", description=__doc__)
    parser.add_argument("--once", action="store_true", help="show it once and end")
    once = parser.parse_args().once
    answer_signals(interrupted)
    with tempfile.TemporaryDirectory(prefix="kepd-demo-") as name:
        folder = Path(name)
        try:
            with ExitStack() as stack:
                try:
                    demonstrate(stack, folder, once=once)
                except KeyboardInterrupt:
                    print(flush=True)
                finally:
                    answer_signals(signal.SIG_IGN)
                say("ending the pods, then kepd")
        except (subprocess.CalledProcessError, SystemExit):
            with suppress(FileNotFoundError):
                print((folder / "kepd.log").read_text(), file=sys.stderr)
            raise
    say("nothing is left behind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
