# SPDX-License-Identifier: Apache-2.0
"""What happens to a node that nobody wanted: no memory for kepd, a clock that jumps, a full disk, and what an
administrator does with its unit meanwhile. Containers run on through all of it."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.vm.drop_in import LIMIT_MIB
from tests.vm.extent import only_whole
from tests.vm.machine import Machine
from tests.vm.pods import BUSYBOX, MANIFESTS, is_ready, put, remove, shown, until_ready

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3600)]

ENDS = re.compile("Evicted|DeadlineExceeded|SandboxChanged")
DAYS_3 = 3 * 24 * 3600
DROP_IN = "/etc/systemd/system/kepd.service.d/trouble.conf"
FILL = "/var/tmp/fill"
# The first takes what anybody may have, the others what is kept for root, to the last block: newer kernels refuse a
# large piece whole where a small one has room, and what a file system set aside comes back when it has written.
FILLS = (
    f"fallocate -l $(df --output=avail -B1 / | tail -n 1) {FILL};"
    f" for size in 1M 4K 4K; do dd if=/dev/zero bs=$size status=none >>{FILL}.rest 2>/dev/null; sync; done"
)
# Drafts that never got their name, and files without their content.
HALVES = "find /var/lib/kepd /etc/kepd -xdev -type f '(' -name '.*' -o -name '*.json' -empty ')'"
LEVELS = (("debug", "7"), ("info", "6"), ("warning", "4"), ("error", "3"))


def simple(name: str, script: str, grace_s: int = 1, **container: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": grace_s,
            "containers": [{"name": "a", "image": BUSYBOX, "command": ["sh", "-c", script], **container}],
        },
    }  # fmt: skip


def ids(machine: Machine, pod: str) -> list[tuple[str, int]]:
    return [(one["id"], one.get("restartCount", 0)) for one in shown(machine)[pod]["containers"]]


def show_unit(machine: Machine, *properties: str) -> list[str]:
    """In this order, which is not that of each systemd."""
    lines = machine.run(f"systemctl show -p {','.join(properties)} kepd").splitlines()
    found = dict(line.split("=", 1) for line in lines)
    return [found[one] for one in properties]


def journal(machine: Machine, arguments: str) -> str:
    return machine.run(f"journalctl -b --no-pager -o cat -u kepd {arguments}")


def test_a_daemon_without_memory_is_started_again_and_its_pods_run_on(bare: Machine) -> None:
    """SYS-05: the kernel ends kepd alone; its limit comes back with the new process."""
    until_ready(bare, "web")
    before = ids(bare, "web")
    pid, restarts, limit = show_unit(bare, "MainPID", "NRestarts", "MemoryMax")
    bare.run("echo 8M >/sys/fs/cgroup/system.slice/kepd.service/memory.max")
    bare.until("another process", lambda: show_unit(bare, "MainPID")[0] not in ("0", pid))
    until_ready(bare, "web")

    assert int(show_unit(bare, "NRestarts")[0]) > int(restarts)
    # Systemd's words, until 257 and since.
    assert re.search("killed by the OOM killer|OOM killer killed", bare.run("journalctl -b -o cat -u kepd _PID=1"))
    assert bare.run("cat /sys/fs/cgroup/system.slice/kepd.service/memory.max").strip() == limit
    assert ids(bare, "web") == before


@only_whole("minutes of waiting")
def test_a_clock_that_jumps_restarts_and_ends_nothing(bare: Machine) -> None:
    """CLK-03: three days ahead, three days behind with a kepd that begins anew there, and back."""
    put(bare, simple("slow", "trap '' TERM; until [ -e /go ]; do sleep 1; done", 600), simple("fails", "exit 3"))
    until_ready(bare, "web", "slow")
    bare.until("fails has a longer back-off", lambda: fails(bare) > 1)
    before = {name: ids(bare, name) for name in ("web", "slow")}
    bare.run(f"rm {MANIFESTS}/slow.yaml")
    bare.until("slow is in its grace", lambda: shown(bare)["slow"]["status"] == "Terminating")
    seen, counts, printed, ended = [], [fails(bare)], "", ends(bare)
    for step_s in (DAYS_3, -2 * DAYS_3, DAYS_3):
        bare.run(f"date -s @$(($(date +%s) + {step_s}))")
        if step_s < 0:
            bare.run("systemctl restart kepd")
        until_ready(bare, "web")
        seen.append({name: ids(bare, name) for name in ("web", "slow")})
        counts.append(fails(bare))
        printed += bare.run("kepctl --timeout 60 get pods; kepctl --timeout 60 get events")
    after = ends(bare)
    bare.run("kepctl --timeout 60 exec slow -- touch /go")
    remove(bare, "fails")
    bare.until("slow is gone", lambda: "slow" not in shown(bare))

    assert seen == [before] * 3, (seen, before)
    assert after <= ended
    assert re.findall(".* -[0-9]+[smhd] .*", printed) == [], printed
    # The first back-off that is left then is 20 s, the next 40: without them it would be tried all the time.
    assert counts[-1] - counts[0] <= 3, counts


def ends(machine: Machine) -> set[str]:
    """Events of pods that were ended, without their age. Those of earlier tests are among them."""
    lines = machine.kepctl("get", "events").stdout.splitlines()
    return {line.split(None, 1)[1] for line in lines if ENDS.search(line)}


def fails(machine: Machine) -> int:
    count: int = shown(machine)["fails"]["containers"][0].get("restartCount", 0)
    return count


@contextmanager
def full_disk(machine: Machine) -> Iterator[None]:
    machine.run(FILLS)
    try:
        yield
    finally:
        machine.run(f"rm -f {FILL} {FILL}.rest")


@only_whole("minutes of waiting")
def test_a_full_disk_ends_nothing_and_is_said(bare: Machine) -> None:
    """SYS-16: also a container that ends meanwhile, and is counted although nothing could be written. Who shall end
    for it is another matter, and switched off here."""
    bare.run("kepctl --timeout 60 config set pods.eviction.mode=off")
    put(bare, simple("ends", "trap 'exit 1' TERM; sleep 2147483 & wait"))
    until_ready(bare, "web", "ends")
    before = ids(bare, "web")
    (pid,) = show_unit(bare, "MainPID")
    late = json.dumps(simple("late", "exec sleep 2147483"))
    bare.run("cat >/run/late.yaml", given=late)
    with full_disk(bare):
        refused = bare.attempt("kepctl --timeout 60 apply -f /run/late.yaml")
        advised = bare.attempt("kepctl --timeout 60 doctor").stdout
        served = bare.run("curl -fs --max-time 60 http://10.96.0.10/hostname").strip()
        # Not by the runtime, which can run nothing in a container now.
        bare.run("pkill -TERM -f '^sh -c trap .exit 1. TERM'")
        bare.until(
            "the end is seen",
            lambda: shown(bare)["ends"]["containers"][0].get("restartCount", 0) or not is_ready(shown(bare)["ends"]),
        )
        during = ids(bare, "web")
        halves = bare.run(HALVES)
    bare.run("kepctl --timeout 60 apply -f /run/late.yaml")
    until_ready(bare, "web", "ends", "late")
    (same,) = show_unit(bare, "MainPID")
    bare.run("systemctl restart kepd")
    until_ready(bare, "web", "ends", "late")
    after, counted = ids(bare, "web"), ids(bare, "ends")[0][1]
    broken = journal(bare, f"_PID={pid} | grep -E 'state_file_|Traceback' || true")
    bare.run("kepctl --timeout 60 delete pod/late")
    remove(bare, "ends", "late")

    assert served == "web-kepd-vm"
    assert (during, after, same) == (before, before, pid)
    assert (halves, broken) == ("", "")
    assert refused.returncode != 0, refused
    assert "No space left on device" in refused.stderr
    assert re.search("disk of /var/lib/kepd.* 0 % of its space free", advised)
    assert counted == 1


def test_a_drop_in_of_the_administrator_counts_and_the_journal_has_levels(tuned: Machine) -> None:
    """LOG-04."""
    tuned.write(f"{MANIFESTS}/broken.yaml", "apiVersion: v1\nkind: Pod\n")
    tuned.until("it is said", lambda: "broken.yaml" in journal(tuned, "-p warning"))
    (pid, limit) = show_unit(tuned, "MainPID", "MemoryMax")
    lines = journal(tuned, f"-o json --output-fields=MESSAGE,PRIORITY _PID={pid}").splitlines()
    tuned.run(f"rm {MANIFESTS}/broken.yaml")
    said = {(one["MESSAGE"].partition(" level=")[2].split()[0], one["PRIORITY"]) for one in map(json.loads, lines)}

    assert limit == str(LIMIT_MIB << 20)
    assert {("info", "6"), ("warning", "4")} <= said <= {*LEVELS}, said


@only_whole("the package compiles twice, for minutes")
def test_a_masked_unit_stays_as_it_is(bare: Machine) -> None:
    """PKG-04: one that runs does not stop another version of the package, and one that was stopped is not started."""
    # systemd hears no sign of life of a unit that is masked, so its watchdog would end what runs half a minute later.
    bare.write(DROP_IN, "[Service]\nWatchdogSec=0\n")
    bare.run("systemctl daemon-reload && systemctl restart kepd")
    until_ready(bare, "web")
    before = ids(bare, "web")
    (pid,) = show_unit(bare, "MainPID")
    bare.run("systemctl mask kepd kepd.socket")
    installed = bare.attempt("sh /var/lib/dpkg/info/kepd.postinst configure 0.0.1")
    (same,) = show_unit(bare, "MainPID")
    said = journal(bare, "-n 30")
    bare.run("systemctl stop kepd.socket kepd")
    stopped = bare.attempt("sh /var/lib/dpkg/info/kepd.postinst configure 0.0.1")
    refused = [bare.attempt(one) for one in ("systemctl start kepd", "kepctl get pods", "kepd setup --yes --now")]
    served = bare.run("curl -fs --max-time 60 http://10.96.0.10/hostname").strip()
    bare.run(f"rm {DROP_IN}; systemctl unmask kepd kepd.socket && systemctl start kepd.socket kepd")
    until_ready(bare, "web")

    assert (installed.returncode, same) == (0, pid), (installed.stderr, said)
    assert "kepd.service is masked, so it is not restarted" in installed.stderr
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert [one.returncode for one in refused] != [0, 0, 0], refused
    assert "masked" in refused[-1].stderr
    assert served == "web-kepd-vm"
    assert ids(bare, "web") == before
