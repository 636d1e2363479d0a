# SPDX-License-Identifier: Apache-2.0
"""Another version takes over a node at work: from a tree that installed itself, then back and forth by apt from a
signed repository, with clients and pods that notice nothing. It runs where kepd was taken off, after all others."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.vm.machine import Machine
from tests.vm.pods import BUSYBOX, PLACE, orderly, put, remove, shown, until_ready

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3600)]

OLDER = "/usr/src/older"
OURS, PREVIOUS = "/usr/src/kepd/dist/kepd_*.deb", "/usr/src/previous/dist/kepd_*.deb"
# As docs/release.md says; no other source of this machine answers.
SOURCE = """
. /etc/os-release
cat >/etc/apt/sources.list.d/kepd.sources <<SOURCE
Types: deb
URIs: file:/srv/apt
Suites: $VERSION_CODENAME
Components: main
Signed-By: /srv/apt/kepd-archive.gpg
SOURCE
apt-get update -o Dir::Etc::SourceList=sources.list.d/kepd.sources -o Dir::Etc::SourceParts=- \\
    -o APT::Update::Error-Mode=any
"""
INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get install -y --allow-downgrades -o Dpkg::Options::=--force-confold"
# But what dpkg puts beside a file that was kept, and what says the name of the machine that a node came from.
SUMS = "cd /etc/kepd && find . -name '*.yaml' ! -name name.yaml | sort | xargs sha256sum"
OLD_NAME = "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\nnode: {name: kepd-vm}\n"
LOAD = """
while [ -e /run/load ]; do
    curl -fs --max-time 30 http://10.96.0.10/hostname >/dev/null && echo answered || echo failed $? at $(date +%T)
    sleep 0.5
done >/run/answers 2>&1
"""
REFUSED = "state_file_|unreadable|Traceback|not_saved"
# Where the machine has a part of an earlier installation.
LEFT = "ls -d /opt/kepd /usr/local/bin/kepd /usr/local/bin/kepctl 2>/dev/null || true"


def restarted_once() -> dict[str, Any]:
    script = "[ -e /order/once ] && exec sleep 2147483; touch /order/once; exit 1"
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "once"},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "a", "image": BUSYBOX, "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "order", "mountPath": "/order"}],
            }],
            "volumes": [{"name": "order", "hostPath": {"path": PLACE, "type": "DirectoryOrCreate"}}],
        },
    }  # fmt: skip


def of_pods(machine: Machine) -> dict[str, list[tuple[str, str, int]]]:
    return {
        name: sorted((one["name"], one["id"], one.get("restartCount", 0)) for one in pod["containers"])
        for name, pod in shown(machine).items()
    }


def refused(machine: Machine) -> str:
    pid = machine.run("systemctl show -P MainPID kepd").strip()
    return machine.run(f"journalctl -b --no-pager -o cat -u kepd _PID={pid} | grep -E '{REFUSED}' || true")


@pytest.fixture(scope="module")
def older(fresh: Machine) -> Iterator[Machine]:
    """The older tree as its own scripts set it up, with pods of several kinds and a client."""
    fresh.run(
        f"if dpkg -s kepd >/dev/null 2>&1; then apt-get purge -y kepd; fi; rm -rf {PLACE}; cp -a {OLDER}/root/. /"
    )
    scripts = f"{OLDER}/deploy/vagrant"
    fresh.run(f"sed -n '/cni.net.d.*<</,/^CNI/p' {scripts}/containerd.sh | sh; sh /vagrant/deploy/vagrant/cgroups.sh")
    fresh.run("systemd-sysusers; systemd-tmpfiles --create kepd.conf; systemctl restart systemd-modules-load")
    fresh.run(f"sysctl -q --system; systemctl daemon-reload; sed 's#/usr/src/kepd#{OLDER}#' {scripts}/bare.sh | sh")
    fresh.run(f"sh {scripts}/check.sh bare")
    put(fresh, orderly("ordered"), restarted_once())
    until_ready(fresh, "web", "ordered")
    fresh.until("once has ended and runs again", lambda: [one[2] for one in of_pods(fresh).get("once", ())] == [1])
    until_ready(fresh, "once")
    fresh.run("touch /run/load; nohup sh >/dev/null 2>&1 </dev/null -c '" + LOAD + "' &")
    yield fresh
    fresh.run("rm -f /run/load")


def test_a_node_of_an_older_tree_is_taken_over_at_work(older: Machine) -> None:
    """ADO-01, ADO-02, ADO-04: its pods, records, rules and history."""
    before = of_pods(older)
    # An older one cannot take itself away (CL-1); this one knows all that it ever put there.
    older.run("sh /vagrant/scripts/install --remove")
    older.run(f"DEBIAN_FRONTEND=noninteractive dpkg --force-confold -i {OURS}", within_s=900)
    older.run("hash -r; kepd setup --yes --now")
    until_ready(older, *before)
    after = of_pods(older)
    told = older.run("kepctl --timeout 60 timeline web; kepctl --timeout 60 get events")
    tables = older.run("nft list tables")

    print(told, tables)
    assert after == before
    assert {count for _, _, count in after["once"]} == {1}
    assert older.run("sort /run/answers | uniq").split() == ["answered"]
    assert older.run("kepctl --timeout 60 diff") == ""
    assert refused(older) == ""
    assert older.run(LEFT) == ""


@pytest.fixture(scope="module")
def versions(older: Machine) -> list[str]:
    """That of the version before this one, then this one."""
    older.run(SOURCE)
    listed = older.run("apt-cache madison kepd").splitlines()
    return [line.split("|")[1].strip() for line in reversed(listed)]


@pytest.mark.parametrize("which", [0, 1])
def test_a_node_goes_back_by_one_version_and_forth_again(older: Machine, versions: list[str], which: int) -> None:
    """ADO-01: by apt, which believes the repository's signature."""
    before = of_pods(older)
    pid = older.run("systemctl show -P MainPID kepd")
    older.run(f"{INSTALL} kepd={versions[which]}", within_s=900)
    until_ready(older, *before)

    assert len(versions) == 2
    assert older.run("dpkg-query -W -f '${Version}' kepd") == versions[which]
    assert older.run("systemctl show -P MainPID kepd") != pid
    assert of_pods(older) == before
    assert older.run("sort /run/answers | uniq").split() == ["answered"]
    assert older.run("kepctl --timeout 60 diff") == ""
    assert refused(older) == ""


def test_a_runtime_that_is_installed_anew_keeps_its_containers(older: Machine) -> None:
    before = of_pods(older)
    older.run(
        "DEBIAN_FRONTEND=noninteractive dpkg --force-confold -i /usr/src/previous/dist/containerd_*.deb", within_s=900
    )
    put(older, orderly("late"))
    until_ready(older, *before, "late")
    after = of_pods(older)
    said = older.run(
        "kepctl --timeout 60 timeline web; journalctl -b -u containerd -u kepd --no-pager -n 60 -o short-monotonic"
    )
    remove(older, "late", "ordered", "once")

    assert {name: after[name] for name in before} == before, said
    assert older.run("sort /run/answers | uniq").splitlines() == ["answered"], said
    assert older.run(f"cat {PLACE}/ordered").split("\n")[-4:-1] == ["hook", "main term", "sidecar term"]


def test_a_node_moves_to_another_machine_by_its_backup_alone(older: Machine, versions: list[str]) -> None:
    """Nothing but the archive outlives a purge, and the machine has another name and identity afterwards. What was
    given out and cordoned is as before."""
    older.run("kepctl --timeout 60 cordon --reason moves")
    before = older.run(SUMS)
    older.run("kepd backup -o /root/node.tar.gz --without-secrets")
    older.run("systemctl disable --now kepd.socket kepd; kepd cleanup --all; apt-get purge -y kepd")
    gone = older.attempt("ls /etc/kepd /var/lib/kepd")
    older.run("hostnamectl set-hostname elsewhere; rm /etc/machine-id; systemd-machine-id-setup")
    older.run(f"{INSTALL} kepd={versions[1]}; kepd setup --yes", within_s=900)
    older.write("/etc/kepd/config.d/name.yaml", OLD_NAME)
    said = older.run("kepd restore /root/node.tar.gz --replace; kepd setup --yes --now")
    older.until_prints("kepctl --timeout 60 status", "cordoned by")
    older.run("kepctl --timeout 60 uncordon")
    until_ready(older, "web")

    assert gone.returncode != 0
    assert "wrote /etc/kepd/manifests/web.yaml" in said
    assert older.run(SUMS) == before
    older.until_prints("curl -fs http://10.96.0.10/hostname", "web")
