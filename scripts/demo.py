# SPDX-License-Identifier: Apache-2.0
"""The demonstration behind scripts/run: examples/ on a real containerd, shown in the terminal.

Owns: choosing the containerd (the system's if one answers, else a private one of the lab), a kepd with directories of
its own, and taking everything away at the end.
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.lab import Image, Lab

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(sys.executable).parent
SYSTEM_SOCKET = Path("/run/containerd/containerd.sock")
IMAGE = "localhost/kepd/hello:1"
LIMIT_S = 30.0


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

    archive = build(Image(name="kepd/hello"), Path("/bin/busybox"), folder).archive(IMAGE, folder / "hello.tar")
    ctr = ["ctr", "-a", str(SYSTEM_SOCKET), "-n", "k8s.io", "images"]
    subprocess.run([*ctr, "import", str(archive)], check=True, capture_output=True)
    try:
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
def daemon(folder: Path, endpoint: str) -> Iterator[None]:
    """kepd with the examples. At the end its pods go first, then the daemon."""
    manifests = folder / "manifests"
    manifests.mkdir()
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        shutil.copy(path, manifests)
    config = write_configuration(folder, endpoint)
    os.environ["KEPD_ENDPOINT"] = str(folder / "run" / "kepd.sock")
    with (folder / "kepd.log").open("w") as log:
        kepd = subprocess.Popen([str(PROGRAMS / "kepd"), "run", "--config", str(config)], stdout=log, stderr=log)
    try:
        yield
    finally:
        for path in manifests.iterdir():
            path.unlink()
        wait_for(lambda: not pods(), "the pods to end")
        kepd.send_signal(signal.SIGTERM)
        kepd.wait(LIMIT_S)
        remove_cgroups(f"kepd-demo-{os.getpid()}")


def remove_cgroups(name: str) -> None:
    """The runtime leaves empty groups behind."""
    for folder in sorted(Path("/sys/fs/cgroup").glob(f"**/{name}/**/"), reverse=True):
        folder.rmdir()


def pods() -> list[dict[str, object]]:
    command = [str(PROGRAMS / "kepctl"), "get", "pods", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: list[dict[str, object]] = json.loads(done.stdout)["items"] if done.returncode == 0 else []
    return found


def are_running() -> bool:
    found = pods()
    return bool(found) and all(pod["phase"] == "Running" for pod in found)


def wait_for(condition: object, what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():  # type: ignore[operator]
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
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/run", description=__doc__)
    parser.add_argument("--once", action="store_true", help="show it once and end")
    once = parser.parse_args().once
    signal.signal(signal.SIGTERM, interrupted)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kepd-demo-")))
        if system_containerd_answers():
            say(f"using the containerd of this system at {SYSTEM_SOCKET}")
            endpoint = stack.enter_context(system_runtime(folder))
        else:
            say("no containerd answers on this system: starting a private one")
            endpoint = stack.enter_context(private_runtime())
        say("starting kepd with the manifests of examples/")
        try:
            stack.enter_context(daemon(folder, endpoint))
            wait_for(are_running, "the pods to run")
            show("status")
            show("get", "pods", "-o", "wide")
            show("get", "containers")
            wait_for(lambda: last_lines(folder), "a line from the containers")
            print(f"\n{last_lines(folder)}\n", flush=True)
            if not once:
                say("Ctrl-C ends it; try: kepctl --endpoint " + os.environ["KEPD_ENDPOINT"] + " get pods")
                subprocess.run([str(PROGRAMS / "kepctl"), "get", "pods", "-w"], check=False)
        except KeyboardInterrupt:
            print(flush=True)
        except (subprocess.CalledProcessError, SystemExit):
            print((folder / "kepd.log").read_text(), file=sys.stderr)
            raise
        say("ending the pods, then kepd")
    say("nothing is left behind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
