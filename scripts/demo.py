# SPDX-License-Identifier: Apache-2.0
"""What scripts/run does: manifests on a containerd of their own, in the foreground.

With a directory its pods run until Ctrl-C, and kepd's log stands in the terminal. Without one, examples/shop is shown:
pulls under a limit, the order of a pod's containers, a Service that answers. The containerd, a registry and the network
of the pods live in a namespace of their own; images of other registries come by a relay, pods have no way out.
Never: touches a containerd, network or directory of this machine, or leaves anything behind, whichever way the end
comes: Ctrl-C, a signal, or kepd dying early.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.lab import Image, Lab, LabError

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(sys.executable).parent
SHOP = ROOT / "examples/shop"
PODS = {"shop-demo", "report-demo", "model-demo"}
SERVICE = "http://10.96.0.10"
HELLO = "localhost/kepd/hello:1"
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LIMIT_S = 60.0
END_LIMIT_S = 90.0
MEBI = 1 << 20
LINK_BYTES_S = 6 * MEBI
IMAGES = (
    Image.sized("shop/proxy", MEBI), Image.sized("shop/logs", 2 * MEBI), Image.sized("shop/web", 4 * MEBI),
    Image.sized("jobs/report", 6 * MEBI), Image.sized("jobs/model", 12 * MEBI),
)  # fmt: skip


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def kepctl(*command: str) -> str:
    done = subprocess.run([str(PROGRAMS / "kepctl"), *command], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def show(*command: str) -> None:
    """Run a command of kepctl and print it with its output."""
    print(f"\n$ kepctl {' '.join(command)}", flush=True)
    subprocess.run([str(PROGRAMS / "kepctl"), *command], check=True)


@contextmanager
def daemon(lab: Lab, manifests: Path, *settings: str, log: Path | None) -> Iterator[subprocess.Popen[bytes]]:
    """`kepd run --manifests`; with a log it is quiet, without one it writes to the terminal."""
    given = [
        f"runtime.endpoint={lab.endpoint}", f"services.detectLocal.clusterCIDRs=[{lab.place.subnet}]", *settings
    ]  # fmt: skip
    arguments = [word for setting in given for word in ("--set", setting)]
    command = [str(PROGRAMS / "kepd"), "run", "--manifests", str(manifests), *arguments]
    with ExitStack() as stack:
        output = stack.enter_context(log.open("wb")) if log else None
        # In a session of its own: Ctrl-C reaches this program alone, which passes it on once.
        kepd = subprocess.Popen(lab.netns.command(command), stdout=output, stderr=output, start_new_session=True)
    try:
        yield kepd
    finally:
        if kepd.poll() is None:
            kepd.send_signal(signal.SIGINT)
        try:
            kepd.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            kepd.kill()
            kepd.wait()


def wait_for(condition: Callable[[], bool], what: str, kepd: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if kepd.poll() is not None:
            raise SystemExit(f"kepd ended with status {kepd.returncode} while this waited for {what}")
        if time.monotonic() > deadline_s:
            raise SystemExit(f"waited {LIMIT_S:g} s for {what} in vain")
        time.sleep(0.1)


def ready_pods() -> set[str]:
    listed = kepctl("get", "pods", "-o", "json")
    return {
        one["metadata"]["name"]
        for one in (json.loads(listed)["items"] if listed else [])
        if any(it["type"] == "Ready" and it["status"] == "True" for it in one["status"].get("conditions", []))
    }


def some_wait() -> bool:
    """Pulls run, and others wait for them."""
    return '"queued"' in kepctl("api", "ObjectService/List", '{"kind": "pulls"}')


def answer_of_service(lab: Lab) -> str:
    """As a client on the node, in the namespace that stands for it."""
    return lab.netns.run([str(lab.programs.paths["busybox"]), "wget", "-qO-", f"{SERVICE}/hostname"]).strip()


def demonstrate(lab: Lab, folder: Path, *, once: bool) -> None:
    say("a registry behind a slow link gets five images")
    for image in IMAGES:
        lab.push(image)
    lab.throttle.limit(total_bytes_s=LINK_BYTES_S)
    say("kepd starts with the manifests of examples/shop, and with at most two pulls at a time")
    log, run, manifests = folder / "kepd.log", folder / "run", folder / "manifests"
    # A copy: what kepctl deletes is taken out of its manifest.
    shutil.copytree(SHOP, manifests)
    os.environ["KEPD_ENDPOINT"] = str(run / "kepd.sock")
    settings = ("node.name=demo", "images.maxParallelPulls=2", f"node.runDirectory={run}")
    try:
        with daemon(lab, manifests, *settings, log=log) as kepd:
            wait_for(some_wait, "pulls that wait", kepd)
            show("get", "pulls")
            wait_for(lambda: ready_pods() >= PODS, "the pods to be ready", kepd)
            show("get", "pods")
            show("get", "services")
            print(f"\n$ wget -qO- {SERVICE}/hostname\n{answer_of_service(lab)}", flush=True)
            if not once:
                say(f"Ctrl-C ends it; try: {PROGRAMS / 'kepctl'} --endpoint {run}/kepd.sock get pods")
                subprocess.run([str(PROGRAMS / "kepctl"), "get", "pods", "-w"], check=False)
            show("delete", "pod", "shop")
            wait_for(lambda: "shop-demo" not in kepctl("get", "pods"), "the end of the pod", kepd)
            show("timeline", "shop")
            print(flush=True)
            say("ending the other pods, then kepd")
    except (subprocess.CalledProcessError, SystemExit):
        with suppress(FileNotFoundError):
            print(log.read_text(), file=sys.stderr)
        raise


def run_manifests(lab: Lab, manifests: Path, archives: Sequence[Path], settings: Sequence[str]) -> int:
    """Until Ctrl-C; the exit code is kepd's."""
    lab.preload(Image(name="kepd/hello"), HELLO)
    for archive in archives:
        say(f"loading the images of {archive}")
        lab.containerd.import_archive(archive)
    say(f"pods have a network of their own, without a way out; reach one with: {PROGRAMS / 'kepctl'} port-forward")
    with daemon(lab, manifests, *settings, log=None) as kepd:
        kepd.wait()
    return kepd.returncode


def interrupted(*_: object) -> None:
    """Only once: a second Ctrl-C must not end the cleaning up."""
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/run", description=__doc__.split("\n", 1)[0])
    parser.add_argument("manifests", type=Path, nargs="?", metavar="DIR", help="manifests to run; none: examples/shop")
    parser.add_argument("--once", action="store_true", help="show examples/shop once and end")
    parser.add_argument("--load", type=Path, action="append", default=[], metavar="FILE", help="archive of images")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="as for kepd")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    for number in ENDS:
        signal.signal(number, interrupted)
    code = 0
    with tempfile.TemporaryDirectory(prefix="kepd-demo-") as name, suppress(KeyboardInterrupt):
        say("starting a containerd and a registry of its own, in a network of their own")
        with Lab.start(is_connected=given.manifests is not None) as lab:
            # Where a default route leads packets for Services into the rules on other nodes.
            lab.netns.run(["ip", "route", "replace", "10.96.0.0/12", "dev", "lo"])
            if given.manifests is None:
                demonstrate(lab, Path(name), once=given.once)
            else:
                code = run_manifests(lab, given.manifests, given.load, given.settings)
    say("nothing is left behind")
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        sys.exit(f"scripts/run: {error}")
