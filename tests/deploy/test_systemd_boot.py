# SPDX-License-Identifier: Apache-2.0
"""The units under a real systemd that is the first process: start, reload, restart, kill, a wrong configuration."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.booted import Booted

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]
UNITS = Path(__file__).resolve().parents[2] / "systemd"

NET_ADMIN = 1 << 12


@pytest.fixture(scope="module")
def system(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with Booted(tmp_path_factory.mktemp("boot"), installed) as booted:
        yield booted


SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
"""


@pytest.fixture
def kepd(system: Booted) -> Iterator[str]:
    """The main process of kepd.service, started with its socket as the documents say; it has a Service."""
    system.run("sh", "-c", f"echo '{SERVICE}' > /etc/kepd/manifests/web.yaml")
    done = system.run("systemctl", "start", "kepd.socket", "kepd.service")
    assert done.returncode == 0, done.stderr + system.run("systemctl", "status", "kepd").stdout + system.console
    yield system.wait_active("kepd.service")
    system.run("systemctl", "stop", "kepd.service", "kepd.socket")
    system.run("systemctl", "reset-failed")


def process_status(system: Booted, pid: str) -> dict[str, str]:
    lines = system.run("cat", f"/proc/{pid}/status").stdout.splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def has_rules(system: Booted) -> bool:
    return "10.96.0.10" in system.run("nft", "list", "ruleset").stdout


def test_the_unit_starts_hardened_and_says_what_it_does(system: Booted, kepd: str) -> None:
    """SYS-01, SYS-04, SYS-07, SYS-08, SYS-10."""
    status = process_status(system, kepd)
    planes = system.run("kepctl", "get", "planes")

    assert system.shown("kepd.service", "StatusText") == "ready; planes: services"
    assert system.shown("kepd.service", "WatchdogUSec") == "30s"
    assert int(status["CapBnd"], 16) == NET_ADMIN
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert planes.returncode == 0, planes.stderr
    assert next(line for line in planes.stdout.splitlines() if line.startswith("services")).split()[1] == "ready"
    assert has_rules(system)
    assert system.run("stat", "-c", "%a %G", "/run/kepd/kepd.sock").stdout.split() == ["660", "kepd"]
    assert system.run("stat", "-c", "%a", "/var/lib/kepd").stdout.strip() == "700"


def test_a_reload_is_told_and_keeps_the_process(system: Booted, kepd: str) -> None:
    """SYS-03."""
    done = system.run("systemctl", "reload", "kepd.service")

    assert done.returncode == 0, done.stderr
    assert system.wait_active("kepd.service") == kepd


def test_calls_during_a_restart_are_answered_and_rules_stay(system: Booted, kepd: str) -> None:
    """SYS-07, SYS-08, DS-13: the socket is systemd's."""
    restart = system.start("systemctl", "restart", "kepd.service")
    calls = []
    while restart.poll() is None:
        calls.append(system.run("kepctl", "get", "nodes", "-o", "name"))
    restart.communicate()
    after = system.wait_active("kepd.service", but=kepd)
    system.run("systemctl", "stop", "kepd.service")

    assert [call.stderr for call in calls if call.returncode != 0] == []
    assert calls
    assert after != kepd
    assert has_rules(system)


def test_a_killed_daemon_comes_back(system: Booted, kepd: str) -> None:
    """SYS-05."""
    system.run("kill", "-9", kepd)
    after = system.wait_active("kepd.service", but=kepd)

    assert after != kepd
    assert int(system.shown("kepd.service", "NRestarts")) >= 1


def test_a_wrong_configuration_is_not_tried_again(system: Booted, kepd: str) -> None:
    """SYS-05: code 78 ends it; trying again would not make it right."""
    system.run(
        "sh", "-c", "mkdir -p /etc/kepd/config.d; echo 'images: {enabeld: true}' > /etc/kepd/config.d/wrong.yaml"
    )
    try:
        system.run("systemctl", "restart", "kepd.service")
        result = [system.shown("kepd.service", name) for name in ("ActiveState", "ExecMainStatus", "NRestarts")]
    finally:
        system.run("rm", "/etc/kepd/config.d/wrong.yaml")

    assert result == ["failed", "78", "0"]


def test_a_daemon_that_hangs_is_ended_and_started_again(system: Booted, kepd: str) -> None:
    """SYS-04: with a shorter watchdog, for the test's sake."""
    folder = "/run/systemd/system/kepd.service.d"
    drop_in = "[Service]\\nWatchdogSec=2\\n"
    system.run("sh", "-c", f"mkdir -p {folder}; printf '{drop_in}' > {folder}/short.conf; systemctl daemon-reload")
    try:
        system.run("systemctl", "restart", "kepd.service")
        pid = system.wait_active("kepd.service", but=kepd)
        system.run("kill", "-STOP", pid)
        after = system.wait_active("kepd.service", but=pid)
    finally:
        system.run("sh", "-c", f"rm -r {folder}; systemctl daemon-reload")

    assert after != pid


def write(system: Booted, path: str, text: str) -> None:
    system.run("sh", "-c", 'printf %s "$1" > "$2"', "sh", text, path)


GROUPED = """
import asyncio, os
from kepd_devices.run.commands import DeviceCommands
from agent.drivers.cgroups.commands import CommandGroups
asyncio.run(DeviceCommands(CommandGroups("one", "", print)).run(["/run/kepd/command"], {}, 30))
with open("/run/kepd/seen", "a") as out:
    places = ("/run/cdi", "/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/device-plugins", "/etc")
    out.write("writes " + " ".join(one for one in places if os.access(one, os.W_OK)))
"""


@pytest.mark.parametrize(
    ("drop_ins", "writes"),
    [
        (["device-driver"], "writes /run/cdi /var/lib/kubelet/plugins_registry"),
        (["device-front"], "writes /var/lib/kubelet/device-plugins"),
        (["pods", "devices"], "/etc"),
    ],
)
def test_commands_for_devices_have_groups_below_that_of_the_unit(
    system: Booted, drop_ins: list[str], writes: str
) -> None:
    """DVD-23, DVF-9: with the rights of each drop-in, and on a machine where a kubelet was never started."""
    system.run("rm", "-rf", "/run/cdi", "/var/lib/kubelet")
    place = "/etc/systemd/system/kepd.service.d"
    run = "[Service]\nType=oneshot\nExecStart=\nExecStart=/opt/kepd/bin/python3 /etc/kepd/grouped.py\n"
    system.run("mkdir", "-p", place, "/run/kepd")
    for one in drop_ins:
        write(system, f"{place}/{one}.conf", (UNITS / f"kepd.service.d/{one}.conf").read_text())
    write(system, f"{place}/z.conf", run)
    write(system, "/etc/kepd/grouped.py", GROUPED)
    write(system, "/run/kepd/command", "#!/bin/sh\ncat /proc/self/cgroup > /run/kepd/seen\n")
    system.run("chmod", "755", "/run/kepd/command")
    system.run("rm", "-f", "/run/kepd/seen")
    system.run("systemctl", "daemon-reload")
    done = system.run("systemctl", "start", "kepd.service")
    seen = system.run("cat", "/run/kepd/seen").stdout
    status = system.run("systemctl", "status", "kepd.service").stdout
    system.run("sh", "-c", f"systemctl stop kepd.service kepd.socket; rm -r {place}; systemctl daemon-reload")
    system.run("systemctl", "reset-failed")

    assert done.returncode == 0, done.stderr + status + system.console
    assert "/system.slice/kepd.service/kepd-devices/one/1" in seen, seen + system.console
    assert seen.endswith(writes)


def test_services_run_without_root(system: Booted) -> None:
    """SYS-13: and reads its configuration and its Services without being root."""
    system.run(
        "sh", "-c", f"umask 027; echo '{SERVICE}' > /etc/kepd/services/web.yaml; chgrp kepd /etc/kepd/services/*"
    )
    system.run("nft", "flush", "ruleset")
    done = system.run("systemctl", "start", "kepd-services.service")
    assert done.returncode == 0, (
        done.stderr + system.run("systemctl", "status", "kepd-services").stdout + system.console
    )
    pid = system.wait_active("kepd-services.service")
    status = process_status(system, pid)
    planes = system.run("kepctl", "--endpoint", "/run/kepd-services/kepd.sock", "get", "planes")
    has_any = has_rules(system)
    system.run("systemctl", "stop", "kepd-services.service")

    assert has_any
    assert "0" not in status["Uid"].split()
    assert int(status["CapEff"], 16) == NET_ADMIN
    assert next(line for line in planes.stdout.splitlines() if line.startswith("services")).split()[1] == "ready"
