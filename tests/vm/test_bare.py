# SPDX-License-Identifier: Apache-2.0
"""A node without Kubernetes, as the Vagrantfile makes it, and the pods that run on it under the shipped units."""

import json
from typing import Any

import pytest

from tests.vm.machine import Machine
from tests.vm.pods import BUSYBOX, put, remove, shown, until_ready

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

HOLDS = (
    "every plane is ready",
    "the pod of a file runs",
    "its Service answers",
    "the same containers run after a restart",
)


def test_what_the_vagrantfile_promises_holds(bare: Machine) -> None:
    """Its own scripts, word for word."""
    said = bare.run("sh /vagrant/deploy/vagrant/check.sh bare").splitlines()

    assert said == [f"==> bare: {one}" for one in HOLDS]


def test_the_node_is_as_kepd_advises_and_the_kernel_has_what_is_wanted(bare: Machine) -> None:
    said = bare.run("kepctl --timeout 60 doctor 2>&1")
    assert "nothing to change" in said, said
    assert bare.run("kepctl --timeout 60 diff") == ""
    assert "10.96.0.10" in bare.run("nft list table ip kepd")


def test_the_units_work_without_complaint(bare: Machine) -> None:
    """FP-33: also without a warning of systemd about them."""
    failed = bare.run("systemctl --failed --no-legend --plain").split()
    said = bare.run("journalctl -b -p warning _PID=1 --no-pager -o cat | grep -i kepd || true")

    assert failed == []
    assert said == ""


# Everything that a container which is not root reads, and writes.
READ = """
id -u; id -G; cat /c/a.conf; cat /s/token; cat /d/name; echo; cat /sub/file
echo x >/e/written && stat -c '%u %g %a' /e /e/written
grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status; cat /proc/self/attr/current; echo done; exec sleep 2147483
"""


def humble() -> list[dict[str, Any]]:
    mounts = [
        {"name": name, "mountPath": f"/{name}"} for name in ("c", "s", "d", "e")
    ] + [{"name": "c", "mountPath": "/sub/file", "subPath": "a.conf"}]  # fmt: skip
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a.conf": "from the map\n"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": "from the secret\n"}},
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "humble"},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "securityContext": {
                    "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000,
                    "seccompProfile": {"type": "RuntimeDefault"}, "appArmorProfile": {"type": "RuntimeDefault"},
                },
                "containers": [{
                    "name": "a", "image": BUSYBOX, "command": ["sh", "-c", READ], "volumeMounts": mounts,
                    "securityContext": {"allowPrivilegeEscalation": False},
                }],
                "volumes": [
                    {"name": "c", "configMap": {"name": "c"}},
                    {"name": "s", "secret": {"secretName": "s"}},
                    {"name": "d", "downwardAPI": {"items": [
                        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}
                    ]}},
                    {"name": "e", "emptyDir": {}},
                ],
            },
        },
    ]  # fmt: skip


def test_a_container_that_is_not_root_reads_and_writes_what_is_meant_for_it(bare: Machine) -> None:
    """FP-4, FP-5: under the unit as it is shipped, with its umask and without most of root's rights."""
    *sources, pod = humble()
    bare.write("/etc/kepd/manifests/sources.yaml", "\n---\n".join(map(json.dumps, sources)), "0600")
    put(bare, pod)
    until_ready(bare, "humble")
    bare.until("it has said all", lambda: "done" in bare.kepctl("logs", "humble").stdout)
    said = bare.kepctl("logs", "humble").stdout.splitlines()
    remove(bare, "sources", "humble")

    assert said[:6] == ["1000", "1000 2000", "from the map", "from the secret", "humble-kepd-vm", "from the map"]
    assert said[6:8] == ["0 2000 2777", "1000 2000 644"]
    assert [line.split() for line in said[8:10]] == [["NoNewPrivs:", "1"], ["Seccomp:", "2"]]
    assert said[10:] == ["cri-containerd.apparmor.d (enforce)", "done"]


def limited(cpu: str, memory: str) -> dict[str, Any]:
    resources = {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": cpu, "memory": memory}}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "limited", "uid": "limited1"},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "a", "image": BUSYBOX, "resources": resources}],
        },
    }  # fmt: skip


def limits_of(machine: Machine, uid: str) -> list[str]:
    """Of the pod's slice and of the container in it, in the kernel; and of the slice, by systemd."""
    slices = "/sys/fs/cgroup/kepd.slice/kepd-burstable.slice"
    pod = f"kepd-burstable-pod{uid}.slice"
    script = f"cd {slices}; cat cpu.weight; cd {pod}; cat cpu.max memory.max; cat cri-containerd-*/cpu.max"
    shown = f"systemctl show --value -p CPUQuotaPerSecUSec -p MemoryMax {pod}"
    return machine.run(f"{script} | sort -u; {shown}").split("\n")[:-1]


def test_limits_stay_when_systemd_reloads_its_units(bare: Machine) -> None:
    """FP-11, RES-09: also after a change in place; and the slice goes with its pod."""
    put(bare, limited("150m", "64Mi"))
    until_ready(bare, "limited")
    pod = shown(bare)["limited"]
    first = limits_of(bare, pod["uid"])
    bare.run("systemctl daemon-reload")
    second = limits_of(bare, pod["uid"])
    put(bare, limited("250m", "96Mi"))
    bare.until_prints(f"systemctl show -p MemoryMax kepd-burstable-pod{pod['uid']}.slice", str(96 << 20))
    bare.until_prints(f"cat /sys/fs/cgroup/kepd.slice/*/*{pod['uid']}.slice/cri-*/cpu.max | sort -u", "25000 100000")
    third = limits_of(bare, pod["uid"])
    bare.run("systemctl daemon-reload")
    fourth = limits_of(bare, pod["uid"])
    after = shown(bare)["limited"]
    remove(bare, "limited")
    bare.until("its slice is gone", lambda: pod["uid"] not in bare.run("systemctl list-units --all --plain '*.slice'"))

    assert first[-2:] == ["150ms", str(64 << 20)]
    assert {"15000 100000", str(64 << 20)} <= {*first}
    assert second == first
    assert third[-2:] == ["250ms", str(96 << 20)]
    assert fourth == third
    assert after["containers"][0]["id"] == pod["containers"][0]["id"], "no restart was needed"


PAGE = "curl -fsS http://127.0.0.1:10241/metrics/cadvisor"
LATER = "until [ -e /go ]; do sleep 1; done"


def test_a_kill_for_want_of_memory_is_counted_by_the_group_of_version_2(bare: Machine) -> None:
    """OOM-01, OOM-03: in `memory.events`, which machines with version 1 have not."""
    hungry = limited("500m", "48Mi")
    hungry["metadata"] = {"name": "hungry"}
    # What has no end of a line is kept until there is one.
    hungry["spec"]["containers"][0]["command"] = ["sh", "-c", f"{LATER}; exec tail -n 1 /dev/zero"]
    hungry["spec"]["restartPolicy"] = "Never"
    put(bare, hungry)
    # The group of one that ends before kepd's first look is gone, and what was in it unknown.
    bare.until_prints(f"{PAGE} | grep ^container_memory_working_set_bytes", 'pod="hungry')
    until_ready(bare, "hungry")
    bare.run("kepctl --timeout 60 exec hungry -- touch /go")
    bare.until("it has failed", lambda: shown(bare).get("hungry", {}).get("phase") == "Failed")
    events = bare.kepctl("get", "events").stdout
    page = bare.run(f"{PAGE} | grep ^kepd_container_oom_kills_total")
    counts = [line for line in page.splitlines() if 'pod="hungry' in line and not line.endswith(" 0")]
    remove(bare, "hungry")

    # What became of the container is said a tenth of a second later, which is little time in emulation.
    assert "Container a: out of memory, limit 48.0MiB; 1 kill (container), the container" in events, events
    assert len(counts) == 1, page
    assert 'scope="container"' in counts[0]
    assert counts[0].endswith(" 1")
