# SPDX-License-Identifier: Apache-2.0
"""Pods on real containers: start order, hooks, probes, volumes, variables, and what people do with them."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.pods.run.disk.lost_networks import RESULTS
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.node.pods import Actor, Stage, pods_daemon
from tests.node.stepping import SteppingRelay

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kepd]:
    with pods_daemon(lab, short_path, free_port, f"logLinkDirectory: {short_path}/links") as daemon:
        yield daemon


@pytest.fixture
def stage(kepd: Kepd, lab: Lab) -> Stage:
    return Stage(kepd, lab.push(Image(name="node/life")))


def container(stage: Stage, name: str) -> dict[str, Any]:
    pod = stage.pod() or {}
    return next((one for one in pod.get("containers", ()) if one["name"] == name), {})


def events(stage: Stage) -> list[tuple[str, str]]:
    items = stage.kepd.json("get", "events")["items"]
    return [
        (one["reason"], one.get("message", ""))
        for one in items
        if one["involvedObject"].get("name") == f"{stage.name}-n1"
    ]


def test_containers_start_in_order_and_hooks_hold_up_the_next(stage: Stage) -> None:
    """STA-02 to STA-04, HOK-02: measured from inside."""
    setup = Actor("setup").container(stage.image, stage.out)
    now = "read now rest < /proc/uptime"
    setup["command"] = [
        "sh", "-c", f'{now}; echo "start $now" >> /out/setup; sleep 0.5; {now}; echo "exit $now" >> /out/setup',
    ]  # fmt: skip
    net = Actor("net", 0.1).container(stage.image, stage.out, is_sidecar=True)
    net["startupProbe"] = {"exec": {"command": ["test", "-e", "/out/up"]}, "periodSeconds": 1, "failureThreshold": 60}
    hook = {
        "exec": {"command": ["sh", "-c", 'sleep 0.5; read now rest < /proc/uptime; echo "hooked $now" >> /out/one']}
    }
    stage.write(
        [Actor("one", 0.1, more={"lifecycle": {"postStart": hook}}), Actor("two", 0.1)], initContainers=[setup, net]
    )
    stage.wait(lambda: stage.lines("net"), "the sidecar runs")
    assert stage.lines("one") == []
    (stage.out / "up").touch()
    stage.wait(lambda: stage.lines("two"), "all run")

    at = {name: dict(stage.lines(name)) for name in ("setup", "net", "one", "two")}
    assert at["setup"]["exit"] <= at["net"]["start"] <= at["one"]["start"] <= at["one"]["hooked"] <= at["two"]["start"]


def test_probes_make_ready_and_end_what_does_not_work(stage: Stage) -> None:
    """PRB-05, PRB-11, PRB-13: exec probes on a file."""
    probe = {"exec": {"command": ["test", "-e", "/out/well"]}, "periodSeconds": 1, "failureThreshold": 1}
    (stage.out / "well").touch()
    app = Actor("app", 0.1, more={"livenessProbe": {**probe, "initialDelaySeconds": 1}, "readinessProbe": probe})
    stage.begin([app])
    stage.wait(lambda: container(stage, "app").get("ready"), "ready")
    (stage.out / "well").unlink()
    stage.wait(lambda: not container(stage, "app").get("ready"), "not ready any more")
    stage.wait(lambda: container(stage, "app").get("restartCount"), "ended and started again")
    (stage.out / "well").touch()
    stage.wait(lambda: container(stage, "app").get("ready"), "ready again")

    reasons = {reason for reason, _ in events(stage)}
    assert {"Unhealthy", "Killing", "Started"} <= reasons
    assert any("failed liveness probe, will be restarted" in text for _, text in events(stage))


def test_a_failed_post_start_hook_ends_its_container(stage: Stage) -> None:
    """HOK-04."""
    stage.write([Actor("app", 0.1, more={"lifecycle": {"postStart": {"exec": {"command": ["false"]}}}})])
    stage.wait(lambda: container(stage, "app").get("restartCount", 0) >= 1, "it is started again")

    assert ("FailedPostStartHook", "PostStartHook failed") in events(stage)


def test_a_restart_of_kepd_during_a_post_start_holds_no_pod_up(stage: Stage, kepd: Kepd) -> None:
    """FP-2: of a sidecar and of a main; no hook runs twice, and nothing is restarted."""
    hook = {"postStart": {"exec": {"command": ["sh", "-c", "echo hook 0 >> /out/$NAME.hook; sleep 60"]}}}
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    main = Stage(kepd, stage.image, "main")
    stage.write([Actor("app", 0.1)], [Actor("net", 0.1, more={"lifecycle": hook})])
    main.write([Actor("app", 0.1, more={"lifecycle": hook, "readinessProbe": probe})])
    stage.wait(lambda: stage.lines("net.hook") and main.lines("app.hook"), "both hooks run")
    kepd.end(signal.SIGTERM)
    kepd.start("--planes", "pods").wait_ready()
    stage.wait(
        lambda: container(stage, "app").get("ready") and container(stage, "net").get("ready"), "the pod is ready"
    )
    stage.wait(lambda: container(main, "app").get("ready"), "the other one too")

    assert "PostStartHookInterrupted" in dict(events(stage))
    assert len(stage.lines("net.hook")) == len(main.lines("app.hook")) == 1
    assert container(stage, "net").get("restartCount", 0) == container(main, "app").get("restartCount", 0) == 0


def test_what_is_taken_out_of_a_manifest_ends_with_its_pre_stop_and_the_rest_runs_on(stage: Stage) -> None:
    """FP-7: a sidecar and a main; the container in their place starts after them."""
    own = {"labels": {}, "uid": "edited"}
    slow = {"hook_script": "sleep 0.5"}
    app, job, net = Actor("app", 0.1), Actor("job", 0.1, **slow), Actor("net", 0.1, **slow)
    stage.begin([app, job], [net], metadata=own)
    stage.write([app, Actor("api", 0.1)], metadata=own)
    stage.wait(lambda: stage.lines("api"), "the new one runs")

    for name in ("job", "net"):
        assert [event for event, _ in stage.lines(name)] == ["start", "hook", "hookend", "term", "exit"]
        assert dict(stage.lines(name))["exit"] <= dict(stage.lines("api"))["start"]
    assert [event for event, _ in stage.lines("app")] == ["start"]


def test_a_pod_ends_although_a_power_cut_emptied_what_cni_wrote_down(stage: Stage, lab: Lab) -> None:
    """FP-30. An older runtime stumbles over the empty result and needs kepd's help; 2.x needs none."""
    stage.begin([Actor("app", 0.1)])
    listed = lab.cri.call("ListPodSandbox", pb.ListPodSandboxRequest()).items
    (sandbox,) = [one.id for one in listed if one.metadata.name == f"{stage.name}-n1"]
    results = list(RESULTS.glob(f"*{sandbox}*"))
    assert results
    for path in results:
        path.write_bytes(b"")
    assert str(results[0]) in stage.kepd.ctl("doctor").stdout

    stage.remove()
    stage.wait_gone()
    assert [path for path in results if path.exists()] == []
    aside = list((RESULTS.parent / "unreadable").glob(f"*{sandbox}-eth0"))
    for path in aside:
        path.unlink()
    assert len(aside) == (1 if lab.containerd.version < (2, 0) else 0)


def test_a_changed_container_starts_again_where_nothing_is_ever_restarted(stage: Stage) -> None:
    """FP-8, MAN-11."""
    own = {"metadata": {"uid": "changed"}, "restartPolicy": "Never"}
    app, web = Actor("app", 0.1, hook_script=":"), Actor("web", 0.1)
    stage.begin([app, web], **own)
    changed = Actor("app", 0.1, hook_script=":", more={"workingDir": "/tmp"})
    stage.write([changed, web], **own | {"metadata": {"uid": "changed"}})
    stage.wait(lambda: len([event for event, _ in stage.lines("app") if event == "start"]) == 2, "it runs again")

    assert [event for event, _ in stage.lines("app")] == ["start", "hook", "hookend", "term", "exit", "start"]
    assert [event for event, _ in stage.lines("web")] == ["start"]
    assert (stage.pod() or {}).get("phase") == "Running"


def test_an_edit_of_what_the_sandbox_is_made_of_begins_the_pod_anew(stage: Stage) -> None:
    """MAN-11: the old one ends with its hook first."""
    more = {"command": ["sh", "-c", "hostname >> /out/names; trap 'exit 0' TERM; sleep 3600 & wait"]}
    app = Actor("app", 0.1, hook_script=":", more=more)
    stage.write([app], metadata={"uid": "renamed"}, hostname="before", restartPolicy="Never")
    stage.wait(lambda: (stage.out / "names").exists(), "it runs")
    stage.write([app], metadata={"uid": "renamed"}, hostname="after", restartPolicy="Never")
    stage.wait(lambda: (stage.out / "names").read_text() == "before\nafter\n", "the new one runs")

    assert [event for event, _ in stage.lines("app")] == ["hook", "hookend"]
    assert container(stage, "app").get("restartCount", 0) == 0


def test_what_a_container_sees(stage: Stage) -> None:
    """VOL, ENV, NET, TMS: variables, files, names, and its last words."""
    sources = """
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {mode: fast, motd: hello}
---
apiVersion: v1
kind: Secret
metadata: {name: hidden}
stringData: {word: sesame}
"""
    (stage.kepd.manifests / "sources.yaml").write_text(sources)
    script = """
echo "$MODE $WORD $POD $MIXED" > /out/env
cat /conf/motd /hidden/word /facts/labels > /out/files; echo >> /out/files
hostname > /out/name; grep play /etc/hosts > /out/hosts; id -u > /out/user
echo data > /cache/kept; echo farewell > /dev/termination-log; exit 3
"""
    app = Actor("app", 0.1).container(stage.image, stage.out)
    app["command"] = ["sh", "-c", script]
    app["env"] = [
        {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "mode"}}},
        {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "word"}}},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "MIXED", "value": "$(POD)-$$(POD)"},
    ]
    app["volumeMounts"] += [
        {"name": "conf", "mountPath": "/conf"}, {"name": "hidden", "mountPath": "/hidden"},
        {"name": "facts", "mountPath": "/facts"}, {"name": "cache", "mountPath": "/cache", "subPath": "a/b"},
    ]  # fmt: skip
    volumes = [
        {"name": "out", "hostPath": {"path": str(stage.out), "type": "Directory"}},
        {"name": "conf", "configMap": {"name": "conf"}},
        {"name": "hidden", "secret": {"secretName": "hidden"}},
        {"name": "facts", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "cache", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    spec = {"restartPolicy": "Never", "volumes": volumes, "containers": [app]}
    stage.out.chmod(0o777)
    stage.write([], metadata={"labels": {"app": "play"}}, **spec)
    stage.wait(lambda: (stage.pod() or {}).get("phase") == "Failed", "it ended")

    def read(name: str) -> str:
        return (stage.out / name).read_text().strip()

    assert read("env") == "fast sesame play-n1 play-n1-$(POD)"
    assert read("files") == 'hellosesameapp="play"'
    assert (read("name"), read("user")) == ("play-n1", "0")
    assert read("hosts").endswith("play-n1")
    assert (
        container(stage, "app")["message"] == "farewell\n".strip() or "farewell" in container(stage, "app")["message"]
    )
    assert "sesame" not in stage.kepd.log.read_text()
    records = list((stage.kepd.folder / "state" / "pods" / "records").glob("*.json"))
    assert all("sesame" not in path.read_text() for path in records)


def test_a_missing_source_is_waited_for(stage: Stage) -> None:
    """ENV-05."""
    env = [
        {"name": "NAME", "value": "app"},
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "a"}}},
    ]
    stage.write([Actor("app", 0.1, more={"env": env})])
    stage.wait(lambda: container(stage, "app").get("reason") == "CreateContainerConfigError", "the reason")
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: late}\ndata: {a: b}\n"
    (stage.kepd.manifests / "late.yaml").write_text(text)
    stage.wait(lambda: stage.lines("app"), "it runs as soon as it can")


def test_people_look_at_pods_and_end_them(stage: Stage) -> None:
    """The picture of a pod that runs, and then of its end; logs, restart, delete."""
    app = Actor(
        "app",
        0.2,
        more={"command": ["sh", "-c", "trap 'exit 0' TERM; echo one; echo two; sleep 3600 & wait"]},
    )
    stage.write([app], [Actor("net", 0.1)])
    stage.wait(lambda: container(stage, "app").get("state") == "Running", "it runs")
    ctl = stage.kepd.ctl
    stage.wait(lambda: ctl("logs", "play").stdout == "one\ntwo\n", "its log")

    assert ctl("logs", "play/app", "--tail", "1").stdout == "two\n"
    assert "it is well and waits for nothing" in ctl("explain", "pod", "play").stdout
    described = ctl("describe", "pod", "play-n1").stdout
    assert "BestEffort" in described
    assert "Requests:          none" in described
    text = ctl("timeline", "play").stdout
    assert all(word in text for word in ("default/play-n1", "net", "app", "all started"))
    kinds = {
        bar["kind"] for row in json.loads(ctl("timeline", "play", "-o", "json").stdout)["rows"] for bar in row["bars"]
    }
    assert "running" in kinds
    assert ctl("timeline", "play", "-o", "svg").stdout.startswith("<svg")

    assert ctl("restart", "play/app").returncode == 0
    stage.wait(lambda: container(stage, "app").get("restartCount") == 1, "restarted")
    assert ctl("delete", "play", "--grace", "5").returncode == 0
    stage.wait(lambda: stage.pod() is None, "gone")
    assert not list(stage.kepd.manifests.iterdir())
    assert ctl("delete", "play").returncode != 0


def test_manifests_are_applied_and_bad_ones_refused(stage: Stage, tmp_path: Path) -> None:
    good = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "applied"},
        "spec": {"containers": [Actor("app", 0.1).container(stage.image, stage.out)],
                 "volumes": [{"name": "out", "hostPath": {"path": str(stage.out)}}]},
    }  # fmt: skip
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump(good))
    ctl = stage.kepd.ctl
    assert ctl("apply", "-f", str(path), "--dry-run", "server").returncode == 0
    assert not list(stage.kepd.manifests.iterdir())
    large = tmp_path / "large.yaml"
    large.write_text(path.read_text() + ("# more than a message may have\n" * 80_000))
    assert ctl("apply", "-f", str(large), "--dry-run", "server").returncode == 0
    assert ctl("apply", "-f", str(path)).returncode == 0
    stage.wait(lambda: stage.lines("app"), "it runs")
    path.write_text(path.read_text().replace("Pod", "Pod\nspce: 1"))

    refused = ctl("apply", "-f", str(path))
    assert refused.returncode != 0
    assert 'spce: not supported by this version; did you mean "spec"?' in refused.stderr


def test_a_drain_ends_pods_by_priority_and_they_stay_as_records(stage: Stage, kepd: Kepd) -> None:
    """NSD-02, NSD-03."""
    other = Stage(kepd, stage.image, "low")
    stage.begin([Actor("app", 0.3)], priority=100)
    other.begin([Actor("app", 0.3)])
    done = kepd.ctl("drain", "--timeout", "60")

    assert sorted(done.stdout.splitlines()) == ["pod/default/low-n1 ended", "pod/default/play-n1 ended"]
    assert dict(other.lines("app"))["exit"] <= dict(stage.lines("app"))["term"]
    assert [(pod["phase"], pod["status"]) for pod in kepd.pods()] == [("Failed", "Terminated")] * 2


def test_a_drained_node_says_so_and_uncordon_brings_its_pods_back(stage: Stage, kepd: Kepd) -> None:
    """FP-25."""
    stage.begin([Actor("app", 0.3)])
    kepd.ctl("drain", "--timeout", "60")
    status, node = kepd.ctl("status").stdout, kepd.json("get", "nodes")["items"][0]["kepd"]
    kepd.end()
    kepd.start("--planes", "pods").wait_ready()
    again = kepd.json("get", "nodes")["items"][0]["kepd"]
    done = kepd.ctl("uncordon")
    kepd.wait(lambda: kepd.pods()[0]["phase"] == "Running", "it runs again")

    assert "drained  by root (uid 0), " in status
    assert "all pods have ended; kepctl uncordon ends it" in status
    assert node["drain"]["by"] == "root (uid 0)"
    assert again["drain"] == node["drain"], "also when kepd starts anew"
    assert done.stdout.splitlines() == ["the node takes pods again", "pod/default/play-n1 begins anew"]
    assert "drain" not in kepd.json("get", "nodes")["items"][0]["kepd"]
    assert "drained" not in kepd.ctl("status").stdout


def test_a_drain_that_does_not_end_in_time_names_what_it_waits_for(stage: Stage, kepd: Kepd) -> None:
    """FP-25."""
    stage.begin([Actor("app", 5.0)])
    done = kepd.ctl("drain", "--timeout", "1")

    assert done.returncode != 0
    assert "the drain goes on and waits for default/play-n1" in done.stderr


def test_a_runtime_that_makes_no_checkpoints_is_named(stage: Stage, lab: Lab) -> None:
    """CKP-01: containerd before 2.0 does not know the call, with or without CRIU; later ones ask for CRIU."""
    stage.begin([Actor("app", 0.1)])
    done = stage.kepd.ctl("checkpoint", "play/app")
    missing = stage.kepd.ctl("checkpoint", "play/none")

    assert done.returncode != 0
    if lab.programs.containerd_version < (2, 0):
        assert "containerd 1." in done.stderr
        assert "cannot make checkpoints" in done.stderr
        assert "containerd 2.0 or later, with criu" in done.stderr
    else:
        assert "criu" in done.stderr.lower()
    assert 'has no container "none"' in missing.stderr
    assert container(stage, "app")["state"] == "Running"


def test_a_checkpoint_is_a_file_for_root_alone(lab: Lab, short_path: Path, free_port: int) -> None:
    """CKP-01. Everything is real but the call itself, which the lab's containerd does not know: a relay in front of it
    answers in its place, and does what containerd 2 does: it writes the archive where it is told to."""
    root = lab.place.cgroup_parent.strip("/")
    extra = f"pods: {{logDirectory: {short_path}/logs, cgroupRoot: '{root}', logLinkDirectory: ''}}\n"
    asked: list[pb.CheckpointContainerRequest] = []

    def checkpoint(request: bytes) -> bytes:
        asked.append(pb.CheckpointContainerRequest.FromString(request))
        Path(asked[-1].location).write_bytes(b"an archive")
        return b""

    with (
        SteppingRelay(short_path, lab.endpoint, lambda _name: True) as relay,
        Kepd(short_path, free_port, endpoint=relay.endpoint, extra=extra) as daemon,
    ):
        relay.answers["CheckpointContainer"] = checkpoint
        daemon.start("--planes", "pods").wait_ready()
        stage = Stage(daemon, lab.push(Image(name="node/life")))
        stage.begin([Actor("app", 0.1)])
        done = daemon.ctl("checkpoint", "play/app")
        stage.remove()
        stage.wait_gone()

    path = Path(done.stdout.strip())
    assert done.returncode == 0, done.stderr
    assert path.parent == short_path / "state" / "pods" / "checkpoints"
    assert re.fullmatch(r"checkpoint-play-n1_default-app-\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\.tar", path.name)
    assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    assert [one.location for one in asked] == [str(path)]
