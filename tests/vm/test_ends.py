# SPDX-License-Identifier: Apache-2.0
"""What ends: the node in order, the node without order, kepd, its runtime; and what is there afterwards."""

import json
import random
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.vm.drop_in import SETTINGS, settle
from tests.vm.extent import CUTS, IS_WHOLE, PODS
from tests.vm.machine import Machine
from tests.vm.names import STREAM, STREAM_FILE
from tests.vm.pods import MANIFESTS, PLACE, is_ready, orderly, put, remove, shown, troubles, until_ready

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3600)]

LIFE = ["sidecar start", "main start", "hook", "main term", "sidecar term"]
# The second is ordered by systemd alone, without a word of logind, whose delay would hold it up.
HOWS = ("systemctl reboot", "systemctl --no-block --job-mode=replace start reboot.target")
LAST_WORDS = "journalctl -b -1 -u kepd --no-pager -o cat | tail -n 60"
GUARD = "systemctl show -p Result,ActiveState kepd-guard; nft list tables; cat /proc/sys/net/ipv4/ip_forward"
SLICES = "systemctl list-units --plain --no-legend --state=active 'kepd-*-pod*.slice' | wc -l"
RESULTS = "find /var/lib/cni/results -type f"
TAKEN = "find /var/lib/cni/networks/kepd -type f -name '10.*'"
GUARDS = "ls /var/lib/kepd/services | grep guard || true"
REFUSED = "journalctl -b -u kepd --no-pager -o cat | grep -E 'state_file_|Traceback' || true"
OURS = "/usr/src/kepd/dist/kepd_*.deb"
MANY = 50
CONFIG = """
apiVersion: v1
kind: ConfigMap
metadata: {{name: many-{}}}
data: {{number: "{}"}}
"""
TROUBLES = troubles(f"{MANIFESTS}/kepctl-default-web.yaml")


class Reboots(NamedTuple):
    """What was seen of the first, and in the end."""

    orders: dict[str, list[str]]
    ends: list[str]
    """The last words of kepd before each."""
    guard: str
    """Its result and state, then the tables after the first boot, and how that forwards."""
    times: list[str]
    refused: "subprocess.CompletedProcess[str]"
    failed: list[str]
    """Units, after names were answered again."""


@pytest.fixture(scope="module")
def rebooted(tuned: Machine) -> Reboots:
    """A boot costs an emulated machine a minute, so one shows all that a reboot is to show. The guard is switched off
    after it."""
    names = [f"o{number}" for number in range(PODS)]
    tuned.write(STREAM_FILE, STREAM)
    put(tuned, *map(orderly, names))
    tuned.until_prints("cat /var/lib/kepd/services/guard.nft", "10.96.0.0/16")
    until_ready(tuned, *names)
    tuned.reboot(HOWS[0])
    until_ready(tuned, "web", *names)
    ends = [tuned.run(LAST_WORDS)]
    guard = tuned.run(GUARD)
    times = tuned.run("systemctl show -P ActiveEnterTimestampMonotonic kepd-guard network-pre.target kepd").split()
    tuned.until_prints(f"python3 {STREAM_FILE} 100 100", "100 of 100")
    failed = tuned.run("systemctl --failed --no-legend --plain").split()
    refused = tuned.attempt("systemctl start kepd-guard")
    settle(tuned, *SETTINGS)
    tuned.run("systemctl disable kepd-guard")
    for how in HOWS[1:] if IS_WHOLE else ():
        tuned.reboot(how)
        until_ready(tuned, "web", *names)
        ends.append(tuned.run(LAST_WORDS))
    orders = {name: tuned.run(f"cat {PLACE}/{name}").splitlines() for name in names}
    remove(tuned, *names)
    return Reboots(orders, ends, guard, times, refused, failed)


def test_a_boot_is_guarded_until_there_are_rules(rebooted: Reboots) -> None:
    """SVN-21, SVN-23: by the unit, before there is a network; kepd lifts it."""
    assert {*rebooted.guard.split()[:2]} == {"Result=success", "ActiveState=active"}
    assert "kepd_guard" not in rebooted.guard
    assert rebooted.times == sorted(rebooted.times, key=int)
    assert rebooted.refused.returncode != 0, "beside a kepd that runs it would stop Services"


def test_reboots_end_pods_in_order(rebooted: Reboots) -> None:
    """FP-22, FP-31: hooks run, sidecars end after those that they serve, no container is killed before its grace."""
    lives = [*LIFE * len(rebooted.ends), *LIFE[:2]]
    assert rebooted.orders == {f"o{number}": lives for number in range(PODS)}, rebooted.ends


def test_names_are_back_after_a_reboot(rebooted: Reboots) -> None:
    """DNS-30: sockets before addresses, addresses and rules with the daemon."""
    assert rebooted.failed == []


@pytest.mark.parametrize("cut", range(CUTS))
def test_pods_come_back_after_a_power_cut(bare: Machine, cut: int) -> None:
    """FP-30: the machine ends while pods start. What its kernel had handed to the disk is there afterwards, so this is
    a crash of the machine, not of its disk. Nor is there anything of a guard that was switched off."""
    chance = random.Random(cut)
    names = [f"p{cut}-{number}" for number in range(3)]
    until_ready(bare, "web")
    before = restarts(bare)
    put(bare, *map(orderly, names))
    time.sleep(chance.uniform(0.5, 20))
    harm, mend = list(TROUBLES.values())[cut % len(TROUBLES)]
    bare.run(harm)
    bare.cut_power()
    bare.start()
    # What is in force stays, whatever has become of its file.
    until_ready(bare, "web")
    bare.run(mend)
    bare.until("all pods ready again", lambda: all(map(is_ready, shown(bare).values())) and {*names} <= {*shown(bare)})
    found, after = shown(bare), restarts(bare)
    slices = int(bare.run(SLICES))
    mounts = bare.run("findmnt -rno TARGET | grep -c /var/lib/kepd/ || true").strip()
    empty = bare.run(f"{RESULTS} -empty")
    refused, guards = bare.run(REFUSED), bare.run(GUARDS)
    remove(bare, *names)
    bare.until("addresses are given back", lambda: len(bare.run(TAKEN).split()) <= len(shown(bare)))
    # Each pod has one of its loopback device too.
    bare.until("results are gone", lambda: len(bare.run(RESULTS).split()) <= 2 * len(shown(bare)))

    assert slices == len(found) == len(names) + 1
    assert {one: count for one, count in after.items() if count > before.get(one, 0) + 1} == {}
    assert (mounts, empty, refused, guards) == ("0", "", "", "")


@pytest.mark.parametrize("cut", range(CUTS))
def test_a_power_cut_leaves_a_change_of_many_files_whole(bare: Machine, cut: int, tmp_path: Path) -> None:
    """All of the change that was under way is in force afterwards, or none of it; what was acknowledged is."""
    until_ready(bare, "web")
    manifest, acknowledged = tmp_path / "many.yaml", [0]

    def change(number: int) -> bool:
        manifest.write_text("---".join(map(CONFIG.format, range(MANY), [number] * MANY)))
        return bare.kepctl("apply", "-f", str(manifest)).returncode == 0

    def change_on() -> None:
        while change(acknowledged[-1] + 1):
            acknowledged.append(acknowledged[-1] + 1)

    assert change(0)
    author = threading.Thread(target=change_on)
    author.start()
    # Any moment of one of the next changes, each of which takes seconds.
    bare.until("another change", lambda: len(acknowledged) > 1)
    time.sleep(random.Random(cut).uniform(0, 6))
    bare.cut_power()
    author.join()
    bare.start()
    until_ready(bare, "web")
    listed = json.loads(bare.run("kepctl get configmaps -o json"))["items"]
    numbers = [made["data"]["number"] for made in listed if made["metadata"]["name"].startswith("many-")]
    files = bare.run(f"grep -hw number {MANIFESTS}/kepctl-ConfigMap.default.many-*.yaml | sort | uniq -c")
    left, refused = bare.run(f"ls -A {MANIFESTS} | grep '^[.]' || true"), bare.run(REFUSED)
    bare.run(f"rm {MANIFESTS}/kepctl-ConfigMap.default.many-*.yaml")

    assert len(numbers) == MANY
    assert len(set(numbers)) == 1, files
    assert int(numbers[0]) - acknowledged[-1] in (0, 1), files
    assert files.split()[0] == str(MANY), files
    assert (left, refused) == ("", "")


# Installing a package takes an emulated machine minutes.
@pytest.mark.parametrize("trouble", list(TROUBLES)[:CUTS])
def test_an_upgrade_over_what_cannot_be_read_ends_nothing(bare: Machine, trouble: str) -> None:
    """By the scripts that the package has for an upgrade: what was in force is remembered by the next process."""
    harm, mend = TROUBLES[trouble]
    until_ready(bare, "web")
    before = shown(bare)["web"]["containers"]
    pid = bare.run("systemctl show --value -p MainPID kepd")
    bare.run(harm)
    bare.run(f"DEBIAN_FRONTEND=noninteractive dpkg --force-confold -i {OURS}", within_s=900)
    bare.until_prints("kepctl --timeout 60 get planes | grep ^pods", "degraded")
    until_ready(bare, "web")
    during = shown(bare)["web"]["containers"]
    bare.run(mend)
    bare.until("all is well", lambda: "degraded" not in bare.run("kepctl --timeout 60 get planes | grep ^pods"))
    after = shown(bare)["web"]["containers"]

    assert bare.run("systemctl show --value -p MainPID kepd") != pid
    assert [one["id"] for one in before] == [one["id"] for one in during] == [one["id"] for one in after]
    assert bare.run(REFUSED) == ""


def restarts(machine: Machine) -> dict[tuple[str, str], int]:
    return {
        (name, one["name"]): one.get("restartCount", 0)
        for name, pod in shown(machine).items()
        for one in pod["containers"]
    }


def test_a_daemon_that_hangs_is_started_again_and_its_pods_run_on(bare: Machine) -> None:
    """SYS-04: the watchdog."""
    until_ready(bare, "web")
    before = shown(bare)["web"]["containers"]
    pid = bare.run("systemctl show --value -p MainPID kepd").strip()
    bare.run(f"kill -STOP {pid}")
    bare.until("another process", lambda: bare.run("systemctl show --value -p MainPID kepd").strip() not in ("0", pid))
    until_ready(bare, "web")

    assert [one["id"] for one in shown(bare)["web"]["containers"]] == [one["id"] for one in before]


def test_a_runtime_that_is_restarted_keeps_its_containers(bare: Machine) -> None:
    until_ready(bare, "web")
    before = shown(bare)["web"]["containers"]
    bare.run("systemctl restart containerd")
    put(bare, orderly("late"))
    until_ready(bare, "web", "late")
    after = shown(bare)["web"]["containers"]
    remove(bare, "late")

    assert [one["id"] for one in after] == [one["id"] for one in before]
