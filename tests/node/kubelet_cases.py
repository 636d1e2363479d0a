# SPDX-License-Identifier: Apache-2.0
"""Pods for a kubelet and for kepd: what they do they write into `/out/log`, and what differs is named here.

A case is a pod; `since` is the first kubelet that knows what is in it. Containers write `NAME WORDS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Fields = dict[str, Any]
STAY = "trap 'exit 0' TERM; while true; do sleep 0.1 & wait $!; done"
SIDECARS, SLEEP_HOOKS = (1, 29), (1, 30)
OUT = {"name": "out", "mountPath": "/out"}


@dataclass(frozen=True)
class Case:
    name: str
    spec: Fields
    metadata: Fields = field(default_factory=dict)
    since: tuple[int, int] = (1, 20)
    # What it writes down once nothing more is to be expected.
    last: str = ""

    def has_settled(self, written: list[str]) -> bool:
        return not self.last or self.last in written


def box(name: str = "app", script: str = STAY, **fields: Any) -> Fields:
    """A container that says when it begins; `IMAGE` is filled in later."""
    mounts = [OUT, *fields.pop("volumeMounts", [])]
    command = ["sh", "-c", f"echo '{name} begins' >> /out/log; {script}"]
    known = {"name": name, "image": "IMAGE", "imagePullPolicy": "IfNotPresent", "command": command}
    return {**known, "volumeMounts": mounts, **fields}


def says(name: str, what: str) -> str:
    return f'echo "{name} {what}" >> /out/log'


def pod(*containers: Fields, inits: tuple[Fields, ...] = (), volumes: tuple[Fields, ...] = (), **spec: Any) -> Fields:
    volume = {"name": "out", "hostPath": {"path": "OUT", "type": "DirectoryOrCreate"}}
    more = {"initContainers": list(inits)} if inits else {}
    known = {"terminationGracePeriodSeconds": 2, "containers": list(containers), "volumes": [volume, *volumes]}
    return {**known, **more, **spec}


def _restarts() -> list[Case]:
    found = [
        Case(f"{policy.lower()}-{code}", pod(box(script=f"exit {code}"), restartPolicy=policy))
        for policy in ("Never", "OnFailure", "Always")
        for code in (0, 1, 3)
    ]
    killed = pod(box(script="kill -9 $$"), restartPolicy="Never")
    mixed = pod(box("a", "exit 0"), box("b", "exit 2"), restartPolicy="Never")
    half = pod(box("a", "exit 0"), box("b"), restartPolicy="Never")
    once = f"[ -e /out/once ] || {{ touch /out/once; exit 1; }}; {STAY}"
    return [
        *found,
        Case("killed", killed),
        Case("two-ends", mixed),
        Case("half-ended", half),
        Case("on-failure-once", pod(box(script=once), restartPolicy="OnFailure")),
        Case("always-once", pod(box(script=once))),
        Case("no-such-program", pod(box(command=["/none"]), restartPolicy="Never")),
        Case("exec-format", pod(box(command=["/etc"]), restartPolicy="Never")),
    ]


def _inits() -> list[Case]:
    first, second = box("first", "sleep 0.3"), box("second", "sleep 0.1")
    fails = box("fails", "exit 1")
    side = {"restartPolicy": "Always"}
    return [
        Case("inits-in-order", pod(box(), inits=(first, second)), last="app begins"),
        Case("init-fails-never", pod(box(), inits=(first, fails, second), restartPolicy="Never")),
        Case("init-fails-always", pod(box(), inits=(fails, second))),
        Case("init-fails-once", pod(box(), inits=(box("i", "[ -e /out/o ] || { touch /out/o; exit 1; }"),))),
        Case("init-then-done", pod(box(script="exit 0"), inits=(first,), restartPolicy="Never")),
        Case("sidecar", pod(box(), inits=({**box("side"), **side},)), since=SIDECARS),
        Case("sidecar-of-a-job", pod(box(script="exit 0"), inits=({**box("side"), **side},), restartPolicy="Never"),
             since=SIDECARS),
        Case("sidecar-between", pod(box(), inits=(first, {**box("side"), **side}, second)), since=SIDECARS),
    ]  # fmt: skip


def _hooks_and_probes() -> list[Case]:
    def hook(kind: str, script: str) -> Fields:
        return {"lifecycle": {kind: {"exec": {"command": ["sh", "-c", script]}}}}

    def probe(script: str, **more: Any) -> Fields:
        return {"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, "failureThreshold": 1, **more}

    late = probe("test -e /tmp/up")
    comes_up = f"(sleep 2; touch /tmp/up) & {STAY}"
    return [
        Case("post-start", pod(box(**hook("postStart", says("app", "hook"))))),
        Case("post-start-fails", pod(box(**hook("postStart", "exit 1")), restartPolicy="Never")),
        Case("pre-stop", pod(box(**hook("preStop", says("app", "stops"))))),
        Case("pre-stop-sleeps", pod(box(lifecycle={"preStop": {"sleep": {"seconds": 1}}})), since=SLEEP_HOOKS),
        Case("ready", pod(box(readinessProbe=probe("true")))),
        Case("never-ready", pod(box(readinessProbe=probe("false")))),
        Case("ready-late", pod(box(script=comes_up, readinessProbe=late))),
        Case("alive", pod(box(livenessProbe=probe("true")))),
        Case("liveness-fails-never", pod(box(livenessProbe=probe("false")), restartPolicy="Never")),
        Case("started", pod(box(script=comes_up, startupProbe={**late, "failureThreshold": 30}))),
        Case("never-started", pod(box(startupProbe=probe("false", failureThreshold=60)))),
        Case("tcp-not-open", pod(box(readinessProbe={"tcpSocket": {"port": 81}, "periodSeconds": 1}))),
        Case("http", pod(box(script="mkdir /tmp/w; httpd -f -p 82 -h /tmp/w",
                             readinessProbe={"httpGet": {"port": 82, "path": "/"}, "periodSeconds": 1}))),
    ]  # fmt: skip


def _contents() -> list[Case]:
    def name(path: str) -> Fields:
        return {"valueFrom": {"fieldRef": {"fieldPath": path}}}

    expanded = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$(NONE)-$$(A)"}]
    paths = {
        "P": "metadata.name",
        "N": "metadata.namespace",
        "L": "metadata.labels['l']",
        "S": "spec.serviceAccountName",
    }
    shown = [{"name": one, **name(path)} for one, path in paths.items()]
    amounts = {"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "100m", "memory": "32Mi"}}
    limits = [
        {"name": one, "valueFrom": {"resourceFieldRef": {"resource": path}}}
        for one, path in (("LC", "limits.cpu"), ("LM", "limits.memory"), ("RC", "requests.cpu"))
    ]
    empty = {"name": "v", "emptyDir": {}}
    at_v = {"name": "v", "mountPath": "/v"}
    downward = {"name": "v", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}
    labels = {"labels": {"l": "x"}}
    user = "sh -c 'id -u; id -g; id -G'"

    def says(script: str, *volumes: Fields, meta: Fields | None = None, **fields: Any) -> Fields:
        spec = {one: fields.pop(one) for one in ("hostNetwork", "hostPID", "hostname", "subdomain") if one in fields}
        spec |= {"securityContext": fields.pop("pod_security")} if "pod_security" in fields else {}
        app = box(script=f"({script}) 2>&1 | sed 's/^/app /' >> /out/log; exit 0", **fields)
        return pod(app, volumes=volumes, restartPolicy="Never", **spec)

    return [
        Case("env", says("echo $B", env=expanded)),
        Case("env-of-the-pod", says("echo $P $N $L $S", env=shown), labels),
        Case("env-of-limits", says("echo $LC $LM $RC", env=limits, resources=amounts)),
        Case("arguments", says("echo $A", env=[{"name": "A", "value": "1"}])),
        Case("working-directory", says("pwd", workingDir="/tmp")),
        Case("hostname", says("hostname")),
        Case("own-hostname", says("hostname", hostname="other", subdomain="sub")),
        Case("empty-dir", says("stat -c %a /v || ls -ld /v | sed 's/ .*//'", empty, volumeMounts=[at_v])),
        Case("read-only-mount", says("touch /v/x || echo refused", empty, volumeMounts=[{**at_v, "readOnly": True}])),
        Case("memory-dir", says("grep ' /v ' /proc/mounts | sed 's/ .*//'",
                                {"name": "v", "emptyDir": {"medium": "Memory"}}, volumeMounts=[at_v])),
        Case("sub-path", says("touch /v/x; ls /v", empty, volumeMounts=[{**at_v, "subPath": "a/b"}])),
        Case("sub-path-expr", says("echo $X; ls -d /v", empty, env=[{"name": "X", "value": "y"}],
                                   volumeMounts=[{**at_v, "subPathExpr": "$(X)"}])),
        Case("downward-files", says("cat /v/l", downward, volumeMounts=[at_v]), labels),
        Case("host-path-missing", pod(box(volumeMounts=[at_v]), volumes=(
            {"name": "v", "hostPath": {"path": "/none/at/all", "type": "Directory"}},))),
        Case("user", says(user, securityContext={"runAsUser": 1000, "runAsGroup": 1001})),
        Case("groups", says(user, pod_security={"runAsUser": 1000, "fsGroup": 2000, "supplementalGroups": [3000]})),
        Case("non-root", pod(box(securityContext={"runAsNonRoot": True}))),
        Case("read-only-root", says("touch /x || echo refused", securityContext={"readOnlyRootFilesystem": True})),
        Case("no-new-privileges", says("grep NoNewPrivs /proc/self/status",
                                       securityContext={"allowPrivilegeEscalation": False})),
        Case("capabilities", says("grep CapEff /proc/self/status",
                                  securityContext={"capabilities": {"drop": ["ALL"]}})),
        Case("score", says("cat /proc/self/oom_score_adj", resources={"limits": {"cpu": "1", "memory": "64Mi"}})),
        Case("host-pid", says("test -d /proc/2 && echo many", hostPID=True)),
        Case("last-words", pod(box(script="echo bye > /dev/termination-log; exit 1"), restartPolicy="Never")),
        Case("last-words-of-a-log", pod(box(script="echo in the log; exit 1",
                                            terminationMessagePolicy="FallbackToLogsOnError"), restartPolicy="Never")),
        Case("deadline", pod(box(), activeDeadlineSeconds=18)),
        Case("no-image", pod(box(image="REGISTRY/none:1", imagePullPolicy="IfNotPresent"))),
        Case("never-pulled", pod(box(image="REGISTRY/none:1", imagePullPolicy="Never"))),
        Case("wrong-name", pod(box(image="UPPER/Case"))),
        Case("host-port", pod(box(ports=[{"containerPort": 80, "hostPort": 18080}]))),
    ]  # fmt: skip


CASES = (*_restarts(), *_inits(), *_hooks_and_probes(), *_contents())
# What differs in a pod's picture, by case: the reason. All else is equal.
DIFFERENT: Mapping[str, str] = {
    "wrong-name": "kepd refuses the manifest when it reads it; a kubelet shows the pod with InvalidImageName",
}
# The same for kubelets before this version, where it may differ by the moment.
OLD_UNTIL = (1, 27)
OLD_DIFFERENT: Mapping[str, str] = {
    "deadline": "they show the container as it was before the deadline; kepd shows how it ended",
    "started": "they look at the pod again up to a minute after its startup probe has passed",
}

IN_PLACE, REPLACED, RESTARTED = "in place", "pod replaced", "app restarted"
# A kubelet since this version restarts a container for another image, and for no other field.
BY_IMAGE_ALONE = (1, 31)
# Since this version a kubelet dereferences nothing where a container of a static pod is taken out, and ends for all.
CRASHES, CRASHES_SINCE = "the kubelet ends", (1, 36)


@dataclass(frozen=True)
class Edit:
    """Of a pod with the containers `app` and `other`."""

    name: str
    effect: str
    after: Fields
    before: Fields = field(default_factory=lambda: two())
    # Where a kubelet differs.
    of_kubelet: str = ""
    meta_after: Fields = field(default_factory=dict)
    meta_before: Fields = field(default_factory=dict)

    def effect_of_kubelet(self, version: tuple[int, int]) -> str:
        if version >= BY_IMAGE_ALONE and self.effect == RESTARTED and self.name != "app-image":
            return IN_PLACE
        return (
            CRASHES
            if version >= CRASHES_SINCE and self.name == "container-taken-out"
            else self.of_kubelet or self.effect
        )


def two(app: Fields | None = None, *more: Fields, **spec: Any) -> Fields:
    return pod(app or box(), box("other"), *more, **spec)


def _of_containers() -> list[Edit]:
    probe = {"exec": {"command": ["true"]}}
    fields: dict[str, Any] = {
        "image": "OTHER",
        "command": ["sh", "-c", f"true; {STAY}"],
        "args": ["x"],
        "workingDir": "/tmp",
        "env": [{"name": "A", "value": "1"}],
        "ports": [{"containerPort": 80}],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "startupProbe": probe,
        "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
        "terminationMessagePath": "/dev/other-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "imagePullPolicy": "Never",
        "securityContext": {"readOnlyRootFilesystem": True},
        "stdin": True,
        "tty": True,
    }
    return [Edit(f"app-{name.lower()}", RESTARTED, two(box(**{name: value}))) for name, value in fields.items()]


def _of_pods() -> list[Edit]:
    """What a kubelet does not look at has no effect there until the next sandbox."""
    unseen: dict[str, Any] = {
        "hostPID": True,
        "hostIPC": True,
        "shareProcessNamespace": True,
        "hostname": "other",
        "dnsPolicy": "Default",
        "securityContext": {"fsGroup": 2000},
    }
    same: dict[str, Any] = {
        "terminationGracePeriodSeconds": 3,
        "restartPolicy": "OnFailure",
        "priority": 5,
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
        "tolerations": [{"operator": "Exists"}],
        "enableServiceLinks": False,
    }
    return [
        *(Edit(f"pod-{name.lower()}", REPLACED, two(**{name: value}), of_kubelet=IN_PLACE)
          for name, value in unseen.items()),
        *(Edit(f"pod-{name.lower()}", IN_PLACE, two(**{name: value})) for name, value in same.items()),
        Edit("pod-hostnetwork", REPLACED, two(hostNetwork=True)),
        Edit("container-added", "more began", two(None, box("more"))),
        Edit("container-taken-out", "more ended", two(), before=two(None, box("more")), of_kubelet=IN_PLACE),
        Edit("label", IN_PLACE, two(), meta_after={"labels": {"a": "b"}}),
        Edit("annotation", IN_PLACE, two(), meta_after={"annotations": {"a": "b"}}),
    ]  # fmt: skip


EDITS = (*_of_containers(), *_of_pods())
