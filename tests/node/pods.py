# SPDX-License-Identifier: Apache-2.0
"""Pods whose containers write down what happens to them, and the timelines read back from inside.

Owns: a shell that writes `EVENT SECONDS` lines into a directory of the node: its start, each signal, its exit, and its
hook. Times are of the kernel's clock, so those of all containers compare.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import yaml

from tests.host.process import Kepd
from tests.host.shown_pods import LIST_PODS, pods_in
from tests.lab import Lab

# `cut` is no applet of the lab's images; the first word of /proc/uptime has hundredths of a second.
NOW = "read now rest < /proc/uptime"
LOOP = "while true; do sleep 0.02 & wait $!; done"
# Who is killed can write nothing about it; the last sign of life is when it happened.
LIVING = f"while true; do {NOW}; echo $now >> /out/$NAME.alive; sleep 0.02 & wait $!; done"


@contextmanager
def pods_daemon(
    lab: Lab, folder: Path, port: int, keys: str = "logLinkDirectory: ''", more: str = "", **environment: str
) -> Iterator[Kepd]:
    """With keys of the plane of its own, and more of the configuration; no pod is left of it."""
    root = lab.place.cgroup_parent.strip("/")
    extra = f"pods: {{logDirectory: {folder}/logs, cgroupRoot: '{root}', {keys}}}\n{more}"
    with Kepd(folder, port, endpoint=lab.endpoint, extra=extra, **environment) as daemon:
        daemon.start("--planes", "pods").wait_ready()
        yield daemon
        for path in daemon.manifests.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.wait(lambda: not daemon.pods(), "all pods gone", within_s=60)


def say(event: str) -> str:
    return f'{NOW}; echo "{event} $now" >> /out/$NAME'


@dataclass(frozen=True)
class Actor:
    """One container. `on_term` is how long it goes on after the signal, or the command it waits for; None: for ever."""

    name: str
    on_term: float | str | None = 0.0
    code: int = 0
    hook: Any = None
    hook_script: str = ""
    dies_after: float | None = None
    more: Any = None

    def container(self, image: str, out: Path, *, is_sidecar: bool = False) -> dict[str, Any]:
        wait = self.on_term if isinstance(self.on_term, str) else f"sleep {self.on_term}"
        ending = f"{wait}; {say('exit')}; exit {self.code}" if self.on_term is not None else ":"
        script = f"trap '{say('term')}; {ending}' TERM; {say('start')}; "
        if self.dies_after is not None:
            death = f"touch /out/$NAME.died; sleep {self.dies_after}; {say('exit')}; exit 1"
            script += f"if [ ! -e /out/$NAME.died ]; then {death}; fi; "
        fields: dict[str, Any] = {
            "name": self.name,
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script + (LOOP if self.on_term is not None else LIVING)],
            "env": [{"name": "NAME", "value": self.name}],
            "volumeMounts": [{"name": "out", "mountPath": "/out"}],
        }
        hook = self.hook
        if self.hook_script:
            text = f"{say('hook')}; {self.hook_script}; {say('hookend')}"
            hook = {"exec": {"command": ["sh", "-c", text]}}
        if hook:
            fields["lifecycle"] = {"preStop": hook}
        if is_sidecar:
            fields["restartPolicy"] = "Always"
        return {**fields, **(self.more or {})}


class Stage:
    """One pod of actors on a running daemon."""

    def __init__(self, kepd: Kepd, image: str, name: str = "play") -> None:
        self.kepd = kepd
        self.image = image
        self.name = name
        self.out = kepd.folder / f"out-{name}"
        self.out.mkdir()
        self.ended_s = 0.0

    def write(self, mains: Sequence[Actor], sidecars: Sequence[Actor] = (), **spec: Any) -> None:
        document = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, **spec.pop("metadata", {})},
            "spec": {
                "containers": [one.container(self.image, self.out) for one in mains],
                "initContainers": [one.container(self.image, self.out, is_sidecar=True) for one in sidecars],
                "volumes": [{"name": "out", "hostPath": {"path": str(self.out)}}],
                **spec,
            },
        }
        hidden = self.kepd.manifests / f".{self.name}"
        hidden.write_text(yaml.safe_dump(document))
        hidden.rename(self.kepd.manifests / f"{self.name}.yaml")

    def begin(self, mains: Sequence[Actor], sidecars: Sequence[Actor] = (), **spec: Any) -> None:
        """Write it and wait until all actors are on the stage."""
        self.write(mains, sidecars, **spec)
        names = {one.name for one in (*mains, *sidecars)}
        self.wait(lambda: all(self.lines(name) for name in names), "all started")

    def clear_away(self) -> None:
        """Ready for another play."""
        (self.kepd.manifests / f"{self.name}.yaml").unlink(missing_ok=True)
        self.wait(lambda: self.pod() is None, "the pod is gone", 60)
        shutil.rmtree(self.out)
        self.out.mkdir()

    def lines(self, name: str) -> list[tuple[str, float]]:
        path = self.out / name
        if not path.exists():
            return []
        return [(line.split()[0], float(line.split()[1])) for line in path.read_text().splitlines() if " " in line]

    def wait(self, condition: Callable[[], Any], what: str, within_s: float = 60.0) -> Any:
        return self.kepd.wait(condition, what, within_s)

    def remove(self) -> None:
        """Take the manifest away: the beginning of the end."""
        self.ended_s = uptime_s()
        (self.kepd.manifests / f"{self.name}.yaml").unlink()

    def pod(self) -> dict[str, Any] | None:
        """As kepctl shows it; while nobody answers, something that is no pod and not nothing."""
        done = self.kepd.ctl(*LIST_PODS)
        if done.returncode != 0:
            return {}
        items = pods_in(done.stdout)
        return next((pod for pod in items if pod["name"] == f"{self.name}-n1"), None)

    def wait_gone(self, within_s: float = 60.0) -> float:
        """Seconds from the beginning of the end to nothing being left."""
        # A kepd that has just begun shows nothing yet, so what it remembers counts as well.
        records = self.kepd.folder / "state" / "pods" / "records"
        self.wait(lambda: not any(records.glob("*.json")) and self.pod() is None, "the pod is gone", within_s)
        return uptime_s() - self.ended_s

    def killed_s(self, name: str) -> float:
        """When the last sign of life of one that ignores its signal was given, since the beginning of the end."""
        return float((self.out / f"{name}.alive").read_text().splitlines()[-1]) - self.ended_s

    def delete(self, grace_s: int) -> float:
        """Ask for an end with this grace; when kepd took it, since the beginning of the end."""
        done = self.kepd.ctl("delete", self.name, "--grace", str(grace_s))
        assert done.returncode == 0, done.stderr
        picture = self.kepd.json("timeline", self.name)
        marks = next(row["marks"] for row in picture["rows"] if not row["name"])
        at_s = next(one["at_s"] for one in marks if one["kind"] == "grace shortened")
        return float(picture["origin_s"] + at_s - (time.time() - uptime_s()) - self.ended_s)

    def timeline(self, *names: str) -> dict[str, list[tuple[str, float]]]:
        """What each actor wrote since the beginning of the end, but for its first start; in seconds after it."""
        return {
            name: [(event, at_s - self.ended_s) for event, at_s in self.lines(name)[1:] if at_s >= self.ended_s - 0.05]
            for name in names
        }


def uptime_s() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def assert_timeline(
    actual: dict[str, list[tuple[str, float]]], expected: dict[str, list[tuple[str, float | str]]]
) -> None:
    """Events in their order, each at its time: +0.3 s for a machine that is busy, -0.05 s for clocks in hundredths.

    A time such as `app.exit+1` counts from what was measured there, so that delays do not add up along a chain.
    """
    shown = {name: [(event, round(at_s, 2)) for event, at_s in events] for name, events in actual.items()}
    for name, events in expected.items():
        assert [event for event, _ in actual[name]] == [event for event, _ in events], shown
        for (event, at_s), (_, wanted_s) in zip(actual[name], events, strict=True):
            due_s = moment(actual, wanted_s) if isinstance(wanted_s, str) else wanted_s
            check_time(due_s, at_s, (name, event, shown))


def check_time(due_s: float, at_s: float, about: object) -> None:
    """Too early is wrong on any machine, too late may be the machine's fault."""
    assert at_s >= due_s - 0.05, about
    if at_s > due_s + 0.3:
        raise Late(f"{at_s - due_s:.2f} s late: {about}")


def check_kill(due_s: float, alive_s: float, about: object) -> None:
    """The last sign of life is up to a turn of its loop before the kill, on a machine that stalls also more."""
    if alive_s < due_s - 0.1:
        raise Late(f"last seen {due_s - alive_s:.2f} s before its kill was due: {about}")
    check_time(due_s, max(alive_s, due_s), about)


class Late(AssertionError):
    """Right in everything but the time."""


Played = Callable[..., None]


def played_up_to_three_times(play: Played) -> Played:
    """A machine that others use stalls now and then for longer than the tolerance; a planner that is late always is."""

    @wraps(play)
    def again(*, stage: "Stage", **others: Any) -> None:
        for _ in range(2):
            try:
                play(stage=stage, **others)
            except Late:
                stage.clear_away()
            else:
                return
        play(stage=stage, **others)

    return again


def moment(actual: dict[str, list[tuple[str, float]]], text: str) -> float:
    """`app.exit` or `app.exit+1` in seconds."""
    where, _, more = text.partition("+")
    name, _, event = where.partition(".")
    return next(at_s for found, at_s in actual[name] if found == event) + float(more or 0)
