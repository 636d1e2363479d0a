# SPDX-License-Identifier: Apache-2.0
"""`kepd run --manifests DIR`: one's own manifests in the foreground, on the runtime of this machine, and nothing left.

The process that was started keeps watch; the daemon is a child in a session of its own, so that Ctrl-C reaches the
watch alone and comes to the daemon once. State lies in a directory that goes with it. The daemon ends its pods before
itself; whatever way it ended, the watch takes away what is left.
Never: reads /etc/kepd, touches pods, rules or files of another kepd, or removes images: they are the runtime's.
"""

import asyncio
import ctypes
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import click
from msgspec.structs import replace

from agent.config.document import API_VERSION, KIND, Configuration, RuntimeSection
from agent.config.sources import FurtherCheck, Sources, host_facts, load
from agent.drivers.manifests.trust import Distrusted, Trust
from agent.kit.plane_lock import PlaneTaken, held_plane_lock
from agent.model.exit_codes import BAD_CONFIGURATION, CONFLICT, NOT_FOUND, NOT_PERMITTED, UNREACHABLE
from agent.model.services.nft_error import NftFailed

PLANES_BY_HAND = "images,pods,services"
FOLDER_PREFIX = "kepd-by-hand-"
ANSWERS_WITHIN_S = 2.0
GROUPS_GO_WITHIN_S = 5.0
PR_SET_PDEATHSIG = 1
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CannotStart(Exception):
    """The text is for the user; `code` is the program's."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def run_by_hand(
    manifests: Path, given: Sources, further: Sequence[FurtherCheck], serve: Callable[[Sources], int]
) -> int:
    """`serve` runs the daemon in a child of this process; its exit code is that of the program."""
    try:
        with _place(manifests) as folder:
            sources = by_hand(given, manifests.resolve(), folder)
            configuration = _checked(sources, further)
            _check_runtime(configuration)
            return _watch(sources, configuration, serve)
    except CannotStart as error:
        say(str(error))
        return error.code


def by_hand(given: Sources, manifests: Path, folder: Path) -> Sources:
    """What was given, with defaults for a kepd of one's own: a `--set` counts more, and nothing of the node's own
    configuration is read unless it is named."""
    file = given.file
    if file is None:
        file = folder / "config.yaml"
        file.write_text(f"apiVersion: {API_VERSION}\nkind: {KIND}\n")
    defaults = {
        "node.stateDirectory": folder / "state",
        "node.runDirectory": folder / "run",
        "manifests.directory": manifests,
        # Whoever runs them by hand has chosen them.
        "manifests.groupWritable": "true",
        "api.httpAddress": "",
        "api.readGroup": "''",
        "pods.logDirectory": folder / "logs",
        "pods.cgroupRoot": folder.name,
        # A machine at hand is used for other things too, and its disks may be full.
        "pods.eviction.mode": "off",
        "services.serviceCIDRs": "[10.96.0.0/12]",
        "services.healthzAddress": "",
        "services.conntrack.maxPerCore": "0",
        "services.conntrack.tcpEstablishedTimeout": "0s",
        "services.conntrack.tcpCloseWaitTimeout": "0s",
    }
    settings = (*(f"{key}={value}" for key, value in defaults.items()), *given.settings)
    return replace(given, file=file, settings=settings, planes=given.planes or PLANES_BY_HAND)


def say(text: str) -> None:
    click.echo(f"kepd: {text}", err=True)


@contextmanager
def _place(manifests: Path) -> Iterator[Path]:
    """A directory for state, sockets and logs of the pods, which goes at the end with all that is mounted in it."""
    if not manifests.is_dir():
        what = "is no directory" if manifests.exists() else "does not exist"
        raise CannotStart(f"--manifests {manifests}: {what}; expected a directory of manifests", NOT_FOUND)
    if os.geteuid() != 0:
        raise CannotStart("pods need root: run it with sudo", NOT_PERMITTED)
    try:
        Trust(may_group_write=True).check(manifests.stat())
    except Distrusted as error:
        # Of a directory that is refused no manifest would run, and only the log would say so.
        raise CannotStart(f"--manifests {manifests}: {error.strerror}", NOT_PERMITTED) from error
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    try:
        yield folder
    finally:
        from agent.drivers.mounts.driver import Mounts

        with suppress(OSError):
            Mounts().unmount_below(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _checked(sources: Sources, further: Sequence[FurtherCheck]) -> Configuration:
    checked = load(sources, host_facts(sources.environment), further)
    if checked.configuration is None:
        raise CannotStart("\nkepd: ".join(map(str, checked.findings)), BAD_CONFIGURATION)
    return checked.configuration


def _check_runtime(configuration: Configuration) -> None:
    endpoint = configuration.runtime.endpoint
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(ANSWERS_WITHIN_S)
            client.connect(endpoint.removeprefix("unix://"))
        with held_plane_lock("pods", endpoint, configuration.node.run_directory):
            pass
    except PlaneTaken as error:
        raise CannotStart(f"{error}, or give these manifests to it with `kepctl apply -f DIR`", CONFLICT) from error
    except OSError as error:
        raise CannotStart(
            f"no container runtime answers at {endpoint} ({error.strerror or error}); start containerd, name another "
            "with --set runtime.endpoint=unix:///PATH, or let `scripts/run DIR` of a clone of kepd start one for you",
            UNREACHABLE,
        ) from error


def _watch(sources: Sources, configuration: Configuration, serve: Callable[[Sources], int]) -> int:
    # Nothing may get lost between the fork and the handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    watch = os.getpid()
    child = os.fork()
    if not child:
        _be_daemon(sources, serve, watch)
    for number in PASSED_ON:
        signal.signal(number, lambda received, _: os.kill(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    kepctl = shutil.which("kepctl") or str(Path(sys.argv[0]).resolve().parent / "kepctl")
    say(f"runs the manifests of {configuration.manifests.directory}; Ctrl-C ends their pods and leaves nothing")
    say(f"look at them with: {kepctl} --endpoint {configuration.api.socket} get pods")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_IGN)
    _take_away(configuration)
    say("its pods are gone, and nothing is left of them")
    return code if code >= 0 else 128 - code


def _be_daemon(sources: Sources, serve: Callable[[Sources], int], watch: int) -> NoReturn:
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    # Whoever watched may have died before that was asked for.
    code = serve(sources) if os.getppid() == watch else 1
    sys.stdout.flush()
    os._exit(code)


def _take_away(configuration: Configuration) -> None:
    """What the daemon leaves where it was killed or hurried, and the rules that a daemon always leaves."""
    with suppress(FileNotFoundError):
        instance = (Path(configuration.node.state_directory) / "instance").read_text("ascii").strip()
        asyncio.run(_remove_pods(configuration.runtime, instance))
    from agent.host.upkeep import cleanup_policies

    # Another kepd enforces policies here; or there is nothing that could.
    with suppress(PlaneTaken, NftFailed):
        asyncio.run(cleanup_policies(configuration, lambda _: None, is_dry=False))
    if configuration.services.enabled:
        from agent.host.upkeep import cleanup_services

        # Another kepd programs Services here; then ours never did.
        with suppress(PlaneTaken):
            asyncio.run(cleanup_services(configuration.node, lambda _: None, is_dry=False, has_heir=False))
    _remove_groups(configuration.pods.cgroup_root)


async def _remove_pods(settings: RuntimeSection, instance: str) -> None:
    from agent.drivers.containerd.driver import Containerd
    from agent.kit.removal import RemovingRuntime
    from agent.model.runtime.error import RuntimeCallFailed

    endpoint = settings.endpoint
    containerd = Containerd(endpoint, settings.containerd_namespace)
    runtime = RemovingRuntime(endpoint, "", containerd)
    try:
        for pod in await runtime.list_sandboxes():
            if pod.annotations.get("kepd.dev/instance") == instance:
                await runtime.stop_sandbox(pod.id)
                await runtime.remove_sandbox(pod.id)
    except RuntimeCallFailed as error:
        say(f"{endpoint}: {error}; pods with the annotation kepd.dev/instance={instance} may be left")
    finally:
        await runtime.close()
        await containerd.close()


def _remove_groups(root: str) -> None:
    """What has only just ended may keep one for a moment."""
    from agent.drivers.cgroups.driver import ControlGroups

    groups, deadline_s = ControlGroups(), time.monotonic() + GROUPS_GO_WITHIN_S
    while True:
        groups.remove(root)
        left = [path for path in (groups.root, *groups.root.iterdir()) if (path / root.strip("/")).exists()]
        if not left or time.monotonic() > deadline_s:
            break
        time.sleep(0.05)
    if left:
        say(f"these control groups could not be removed: {', '.join(str(path / root) for path in left)}")
