# SPDX-License-Identifier: Apache-2.0
"""Pods that say in a file of the machine what becomes of them and when, and how to wait for them."""

import json
from typing import Any

from tests.host.shown_pods import LIST_PODS, pods_in
from tests.vm.machine import Machine

BUSYBOX = "docker.io/library/busybox:1.37"
PLACE = "/var/log/order"
MANIFESTS = "/etc/kepd/manifests"
# One that ends the moment it is asked to, and says so.
LIFE = """
trap 'echo {name} term >>/order/{pod}; exit 0' TERM
echo {name} start >>/order/{pod}
sleep 2147483 & wait $!
"""


def orderly(pod: str) -> dict[str, Any]:
    """A sidecar, a main container with a hook before its end, and the order of all of it in PLACE."""

    def container(name: str, **more: Any) -> dict[str, Any]:
        return {
            "name": name, "image": BUSYBOX, "command": ["sh", "-c", LIFE.format(name=name, pod=pod)],
            "volumeMounts": [{"name": "order", "mountPath": "/order"}], **more,
        }  # fmt: skip

    hook = ["sh", "-c", f"echo hook >>/order/{pod}; sleep 1"]
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod},
        "spec": {
            # Far more than it takes: in emulation a hook may take half a minute.
            "terminationGracePeriodSeconds": 90,
            "initContainers": [container("sidecar", restartPolicy="Always")],
            "containers": [container("main", lifecycle={"preStop": {"exec": {"command": hook}}})],
            "volumes": [{"name": "order", "hostPath": {"path": PLACE, "type": "DirectoryOrCreate"}}],
        },
    }  # fmt: skip


def troubles(path: str) -> dict[str, tuple[str, str]]:
    """What becomes of a manifest by hand in the moment before kepd ends, and how it is taken back afterwards."""
    folder, kept = path.rpartition("/")[0], "/root/kept"
    return {
        "faulty": (f"cp -p {path} {kept}; echo 'kind: [' >{path}; sync", f"cp -p {kept} {path}"),
        "missing": (f"mv {folder} {folder}.away; sync", f"rmdir {folder} || true; mv {folder}.away {folder}"),
        "dangling": (f"mv {path} {kept}; ln -s /nowhere {path}; sync", f"mv {kept} {path}"),
    }


def put(machine: Machine, *pods: dict[str, Any]) -> None:
    for one in pods:
        machine.write(f"{MANIFESTS}/{one['metadata']['name']}.yaml", json.dumps(one))


def remove(machine: Machine, *names: str) -> None:
    """And wait until they are gone."""
    machine.run(" ".join(["rm -f", *(f"{MANIFESTS}/{name}.yaml" for name in names)]))
    machine.until(f"{', '.join(names)} gone", lambda: not {*names} & {*shown(machine)})


def shown(machine: Machine) -> dict[str, dict[str, Any]]:
    """All pods by the names in their manifests, as `kepctl` has them."""
    done = machine.kepctl(*LIST_PODS)
    if done.returncode != 0:
        return _shown_by_an_older_kepd(machine) or {"?": {"answer": done.stderr}}
    return {pod["name"].removesuffix("-kepd-vm"): pod for pod in pods_in(done.stdout)}


def _shown_by_an_older_kepd(machine: Machine) -> dict[str, dict[str, Any]]:
    """0.9 lists pods by a call of its own, which its own kepctl knows."""
    done = machine.attempt("kepctl api PodService/ListPods")
    if done.returncode != 0:
        return {}
    return {pod["name"].removesuffix("-kepd-vm"): pod for pod in json.loads(done.stdout).get("pods", [])}


def until_ready(machine: Machine, *names: str) -> None:
    def are_ready() -> bool:
        now = shown(machine)
        return all(is_ready(now.get(name, {})) for name in names)

    machine.until(f"{', '.join(names)} ready", are_ready)


def is_ready(pod: dict[str, Any]) -> bool:
    containers = pod.get("containers", [])
    return pod.get("phase") == "Running" and bool(containers) and all(one.get("ready") for one in containers)
