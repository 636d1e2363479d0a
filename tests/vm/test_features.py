# SPDX-License-Identifier: Apache-2.0
"""What a pod can have only where the release has it: it works there, and elsewhere kepd says what is missing."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.vm.machine import Machine
from tests.vm.pods import BUSYBOX, put, remove, shown, until_ready

pytestmark = [pytest.mark.vm, pytest.mark.timeout(1800)]

DROP_IN = "/etc/systemd/system/kepd.service.d/features.conf"
SWAP = "/var/tmp/swapfile"
SWAP_MIB = 128
WAITS = "exec sleep 2147483"
# Begins by itself at 1; what it has in memory goes on.
COUNTS = "trap 'exit 0' TERM; n=0; while true; do n=$((n + 1)); echo $n >/tmp/n; sleep 1; done"


def pod(name: str, script: str, more: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "a", "image": BUSYBOX, "command": ["sh", "-c", script], **container}],
            **(more or {}),
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def containerd(bare: Machine) -> tuple[int, int]:
    said = bare.run("containerd --version")
    found = re.search(r" v?(\d+)\.(\d+)\.", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


def test_a_pod_may_have_users_of_its_own(bare: Machine, containerd: tuple[int, int]) -> None:
    """SEC-07."""
    put(bare, pod("users", f"cat /proc/self/uid_map; echo done; {WAITS}", {"hostUsers": False}))
    if containerd >= (2, 0):
        bare.until_prints("kepctl logs users", "done")
        inside, outside, count = bare.run("kepctl --timeout 60 logs users").split()[:3]
        assert (inside, count) == ("0", "65536")
        assert int(outside) >= 65536
    else:
        text = "hostUsers false needs user namespaces, which containerd {}.{}".format(*containerd)
        bare.until_prints("kepctl --timeout 60 get events", text)
    remove(bare, "users")


def test_a_pod_may_have_the_files_of_an_image(bare: Machine, containerd: tuple[int, int]) -> None:
    """VOL-09."""
    volume = {"name": "files", "image": {"reference": BUSYBOX, "pullPolicy": "Never"}}
    script = f"ls /files/bin/busybox; touch /files/x 2>&1; echo done; {WAITS}"
    mount = {"name": "files", "mountPath": "/files"}
    put(bare, pod("files", script, {"volumes": [volume]}, volumeMounts=[mount]))
    if containerd >= (2, 1):
        bare.until_prints("kepctl logs files", "done")
        said = bare.run("kepctl --timeout 60 logs files")
        assert "/files/bin/busybox\n" in said
        assert "Read-only file system" in said
    else:
        text = 'volume "files" is an image, which containerd {}.{}'.format(*containerd)
        bare.until(text, lambda: text in shown(bare)["files"]["containers"][0].get("message", ""))
    remove(bare, "files")


def test_a_container_that_runs_can_be_written_down(bare: Machine, containerd: tuple[int, int]) -> None:
    """CKP-01, CKP-14: and its copy goes on from there."""
    # containerd 2.1 restores an image alone that came from a registry.
    bare.write("/root/registry.py", Path(__file__).with_name("registry.py").read_text())
    bare.run(
        "setsid python3 /root/registry.py /root/images/1.tar 5000 </dev/null >/dev/null 2>&1 & echo $! >/run/registry"
    )
    put(bare, pod("kept", COUNTS, image="localhost:5000/busybox:1.37"))
    until_ready(bare, "kept")
    before = shown(bare)["kept"]["containers"][0]["id"]
    done = bare.attempt("kepctl checkpoint kept")
    if containerd >= (2, 0):
        assert done.returncode == 0, done.stderr
        archive = done.stdout.strip()
        assert bare.run(f"stat -c '%a %U' {archive}").split() == ["600", "root"]
        assert {"spec.dump", "config.dump"} <= {*bare.run(f"tar -tf {archive}").split()}
        goes_on(bare, archive)
    else:
        assert done.returncode != 0
        assert "cannot make checkpoints; that needs CRI-O, or containerd 2.0 or later" in done.stderr
    until_ready(bare, "kept")
    assert shown(bare)["kept"]["containers"][0]["id"] == before
    remove(bare, "kept")
    bare.run("kill $(cat /run/registry)")


def goes_on(machine: Machine, archive: str) -> None:
    """Another pod counts on from where the first stood, once."""
    path = Path(archive)
    stood_at = int(machine.run(f"tar -xOf {archive} rootfs-diff.tar | tar -xzO tmp/n"))
    machine.run(f"kepctl --timeout 60 restore {path.name} --as again")
    until_ready(machine, "again")
    events = machine.kepctl("get", "events").stdout
    goes_on_at = int(machine.run("kepctl --timeout 60 exec again -- cat /tmp/n"))
    machine.run("kepctl --timeout 60 restart again/a")
    machine.until("it runs again", lambda: shown(machine)["again"]["containers"][0].get("restartCount") == 1)
    until_ready(machine, "again")
    begins_at = int(machine.run("kepctl --timeout 60 exec again -- cat /tmp/n"))
    machine.run(f"kepctl --timeout 60 delete pod/again --wait; kepctl --timeout 60 delete checkpoint {path.name}")

    assert f"begins from checkpoint {path.name}" in events
    assert stood_at < goes_on_at
    assert begins_at < goes_on_at


def test_a_container_may_use_as_much_swap_as_its_share_of_the_memory(bare: Machine) -> None:
    """RES-05: and none without the node's word for it, or with a limit that is its request."""
    bare.run(f"fallocate -l {SWAP_MIB}M {SWAP} && chmod 600 {SWAP} && mkswap -q {SWAP} && swapon {SWAP}")
    bare.write(DROP_IN, "[Service]\nEnvironment=KEPD_PODS__SWAP=LimitedSwap\n")
    bare.run("systemctl daemon-reload && systemctl restart kepd")
    # Guaranteed needs a limit of CPU, and what starts a container in an emulated machine needs seconds of it.
    fixed = {"cpu": "500m", "memory": "300Mi"}
    requests, limits = {"grows": {"memory": "300Mi"}, "fixed": fixed}, {"grows": {"memory": "600Mi"}, "fixed": fixed}
    script = f"cat /sys/fs/cgroup/memory.swap.max; echo done; {WAITS}"
    put(bare, *(pod(one, script, resources={"requests": requests[one], "limits": limits[one]}) for one in requests))
    said = {}
    for one in requests:
        bare.until_prints(f"kepctl logs {one}", "done")
        said[one] = int(bare.run(f"kepctl --timeout 60 logs {one}").split()[0])
    memory_kib = int(bare.run("sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo"))
    remove(bare, *requests)
    bare.run(f"rm {DROP_IN}; systemctl daemon-reload; systemctl restart kepd; swapoff {SWAP}; rm {SWAP}")
    until_ready(bare, "web")
    share = (300 << 20) * (SWAP_MIB << 20) // (memory_kib << 10)

    assert said["fixed"] == 0
    # The kernel counts in pages, and a file for swap has one for itself.
    assert 0 <= share - said["grows"] < 3 * 4096, (share, said)
