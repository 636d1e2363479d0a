# SPDX-License-Identifier: Apache-2.0
"""`kepd setup` below a directory that stands for a node: what it writes, when it asks, and what it never touches."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.config.sources import Sources, drop_in_folder, host_facts, load
from agent.host.main import main
from agent.host.setup import command
from agent.host.setup.command import Setup
from agent.host.setup.look import look
from agent.host.setup.node_files import InTheWay, NodeFiles
from agent.host.setup.plan import CNI_LIST, CONFIGURATION, DROP_IN, UNIT_FOLDER, MakeFolder, NodeFound, WriteFile
from agent.model.exit_codes import CONFLICT, FAILURE, NOT_PERMITTED
from tests.host.process import ROOT

ADDRESSES = ("192.0.2.7", "2001:db8::7")
ROUTES = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t00000000\t010200C0\t3\t0\t0\t0\t00000000\n"
)
SHIPPED = (
    "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\n"
    "images: {enabled: true}\nservices: {enabled: true}\npods: {enabled: false}\n"
)


class Node:
    """A root directory as an installation leaves it, and what was run there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ran: list[str] = []
        self.files = NodeFiles(root, lambda _: os.getgid())
        self.put("proc/net/route", ROUTES)
        self.put("proc/filesystems", "nodev\toverlay\n")
        self.put("proc/sys/net/ipv4/ip_forward", "1\n")
        self.put("proc/sys/net/bridge/bridge-nf-call-iptables", "1\n")
        self.put("usr/share/kepd/systemd/pods.conf", "[Service]\n")
        self.put("usr/share/kepd/systemd/services.conf", "[Service]\nTasksMax=9\n")
        self.put(CONFIGURATION, SHIPPED)

    def put(self, place: str, text: str) -> Path:
        path = self.at(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def at(self, place: str) -> Path:
        return self.root / place.lstrip("/")

    def look(self) -> NodeFound:
        return look(self.root, lambda: ADDRESSES, lambda: True)

    def run(self, words: Sequence[str]) -> None:
        self.ran.append(" ".join(words))
        if words[0] == "systemd-tmpfiles":
            self.at("run/kepd-locks").mkdir(parents=True)

    def setup(
        self, *, is_dry: bool = False, is_agreed: bool = False, is_terminal: bool = False, is_starting: bool = False
    ) -> int:
        work = Setup(self.files, self.look, self.run)
        return work.work(is_dry=is_dry, is_agreed=is_agreed, is_terminal=is_terminal, is_starting=is_starting)

    def tree(self) -> dict[str, tuple[int, bytes]]:
        return {
            str(path.relative_to(self.root)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
            for path in self.root.rglob("*")
        }


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_fresh_node_is_ready_without_a_question(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.setup() == 0

    facts = host_facts({})
    found = load(Sources(file=node.at(CONFIGURATION), environment={}), facts)
    assert found.configuration is not None
    assert not found.configuration.node.addresses
    assert tuple(found.configuration.services.service_cidrs) == ("10.96.0.0/16",)
    assert found.configuration.pods.enabled
    assert tuple(found.configuration.services.detect_local.cluster_cidrs) == ("10.85.0.0/16",)
    assert json.loads(node.at(CNI_LIST).read_text())["plugins"][1]["type"] == "portmap"
    assert node.at(f"{UNIT_FOLDER}/pods.conf").read_text() == "[Service]\n"
    assert node.ran == ["systemd-tmpfiles --create kepd.conf"]
    modes = {DROP_IN: 0o640, CNI_LIST: 0o644, "etc/kepd/config.d": 0o750, "var/lib/kepd": 0o700}
    assert {place: stat.S_IMODE(node.at(place).stat().st_mode) for place in modes} == modes
    assert "next: systemctl daemon-reload && systemctl enable --now" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["services.yaml", "cri.yaml"])
def test_it_sets_up_one_kepd_and_no_other(node: Node, name: str) -> None:
    """CL-3: after it those of other units took planes that were taken."""
    node.put(f"etc/kepd/{name}", (ROOT / "systemd" / name).read_text())
    sources = Sources(file=node.at(f"etc/kepd/{name}"), environment={})
    before = load(sources, host_facts({})).configuration

    assert node.setup() == 0

    assert node.at(DROP_IN).parent == drop_in_folder(node.at(CONFIGURATION))
    assert before is not None
    assert load(sources, host_facts({})).configuration == before


def test_a_second_run_has_nothing_to_do(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.setup()
    before = node.tree()
    capsys.readouterr()

    assert node.setup() == 0

    assert "nothing to do" in capsys.readouterr().out
    assert node.tree() == before
    assert len(node.ran) == 1


def test_a_dry_run_shows_every_step_and_changes_nothing(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    before = node.tree()

    assert node.setup(is_dry=True) == 0

    told = capsys.readouterr().out
    assert f"would write {CNI_LIST}" in told
    assert '+services: {serviceCIDRs: ["10.96.0.0/16"], detectLocal: {clusterCIDRs: ["10.85.0.0/16"]}}' in told
    assert "would run systemd-tmpfiles" in told
    assert (node.tree(), node.ran) == (before, [])


def test_a_file_that_exists_is_not_changed_without_a_word(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.put(DROP_IN, SHIPPED)
    before = node.tree()

    assert node.setup() == CONFLICT

    told = capsys.readouterr()
    assert "--yes" in told.err
    assert "-pods: {enabled: false}" in told.out
    assert node.tree() == before
    assert node.setup(is_agreed=True) == 0
    assert "serviceCIDRs" in node.at(DROP_IN).read_text()


@pytest.mark.parametrize("answer", [True, False])
def test_on_a_terminal_setup_asks(*, node: Node, answer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    node.put(DROP_IN, SHIPPED)
    monkeypatch.setattr(command.click, "confirm", lambda _: answer)

    assert node.setup(is_terminal=True) == (0 if answer else CONFLICT)

    assert node.at(CNI_LIST).exists() is answer


def test_a_setting_of_the_kernel_is_changed_only_when_agreed(node: Node) -> None:
    node.put("proc/sys/net/ipv4/ip_forward", "0\n")

    assert node.setup() == CONFLICT
    assert node.setup(is_agreed=True) == 0

    assert "sysctl -q -w net.ipv4.ip_forward=1" in node.ran


class Killed(BaseException):
    """As if the process had ended there."""


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("is_in_the_middle", [False, True])
def test_a_setup_that_dies_is_completed_by_the_next(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, steps: int, is_in_the_middle: bool
) -> None:
    """Between two steps, or between the draft of a file and its name."""
    whole = Node(tmp_path / "whole")
    whole.setup()
    left, name = [steps], "rename" if is_in_the_middle else "mkdir"
    real = getattr(os, name)

    def dying(*given: object, **named: object) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        real(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, name, dying)
        try:
            node.setup()
        except Killed:
            assert not node.at(DROP_IN).exists() or node.at(DROP_IN).stat().st_size

    assert node.setup() == 0

    assert {path: one for path, one in node.tree().items() if not path.startswith("whole")} == whole.tree()


HOSTILE = ["etc/cni", "etc/kepd/config.d", "etc/kepd/manifests", "var/lib/kepd", "etc/systemd/system/kepd.service.d"]


@pytest.mark.parametrize("place", HOSTILE)
def test_nothing_is_written_through_a_link(node: Node, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = node.root / "elsewhere"
    elsewhere.mkdir()
    node.at(place).parent.mkdir(parents=True, exist_ok=True)
    node.at(place).symlink_to(elsewhere)
    before = node.tree()

    assert node.setup(is_agreed=True) == CONFLICT

    assert f"/{place} is a symbolic link" in capsys.readouterr().err
    assert node.tree() == before


@pytest.mark.parametrize("path", [DROP_IN, f"{UNIT_FOLDER}/pods.conf"])
@pytest.mark.parametrize("kind", ["link", "directory", "fifo"])
def test_what_is_no_file_is_left_alone(node: Node, path: str, kind: str) -> None:
    target = node.put("shadow", "secret")
    place = node.at(path)
    place.parent.mkdir(parents=True)
    if kind == "link":
        place.symlink_to(target)
    elif kind == "directory":
        place.mkdir()
    else:
        os.mkfifo(place)

    assert node.setup(is_agreed=True) == CONFLICT

    assert target.read_text() == "secret"
    assert not node.at(CNI_LIST).exists()


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"plugins": [{"ipam": 7}]}', '{"plugins": [{"ipam": {"ranges": [[{}]]}}]}']
)
def test_another_list_of_cni_stays_as_it_is(node: Node, text: str) -> None:
    list_path = node.put("etc/cni/net.d/05-other.conflist", text)

    assert node.setup() == 0

    assert list_path.read_text() == text
    assert list(list_path.parent.iterdir()) == [list_path]


def test_the_subnet_of_another_list_is_taken_over(node: Node) -> None:
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/16"}], [{"subnet": "fd00::/64"}]]}
    node.put("etc/cni/net.d/05-other.conflist", json.dumps({"plugins": [{"type": "bridge", "ipam": ipam}]}))

    node.setup()

    assert '["10.9.0.0/16", "fd00::/64"]' in node.at(DROP_IN).read_text()


def test_routes_and_name_servers_keep_their_ranges(node: Node) -> None:
    table = ROUTES + "tun0\t0000550A\t00000000\t1\t0\t0\t0\t0000FFFF\n"
    node.put("proc/net/route", table)
    node.put("etc/resolv.conf", "nameserver 10.86.0.2\nnameserver\nnameserver x\n")

    node.setup()

    assert '"subnet": "10.87.0.0/16"' in node.at(CNI_LIST).read_text()


def test_an_address_that_setup_once_wrote_goes(node: Node) -> None:
    """It would end the following of a default route that changes."""
    node.setup()
    old = node.at(DROP_IN).read_text() + 'node: {addresses: ["192.0.2.7"]}\n'
    node.put(DROP_IN, old)

    assert node.setup(is_agreed=True) == 0

    assert "addresses:" not in node.at(DROP_IN).read_text()


def test_a_route_that_came_later_moves_no_service(node: Node) -> None:
    node.setup()
    before = node.tree()
    node.put("proc/net/route", ROUTES + "tun0\t0000600A\t00000000\t1\t0\t0\t0\t0000FFFF\n")

    assert node.setup() == 0

    assert {place: one for place, one in node.tree().items() if not place.startswith("proc")} == {
        place: one for place, one in before.items() if not place.startswith("proc")
    }


def test_with_now_kepd_runs_after_the_rest(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.setup(is_starting=True) == 0
    assert node.ran[1:] == [
        "systemctl daemon-reload", "systemctl enable --now kepd-dns.socket kepd-dns.service",
        "systemctl enable kepd.socket kepd", "systemctl start kepd.socket", "systemctl restart kepd",
    ]  # fmt: skip
    assert capsys.readouterr().out.splitlines()[-1] == "next: kepctl doctor"


ASKING = """
import sys
from pathlib import Path
from tests.host.setup.test_setup import Node
node = Node(Path(sys.argv[1]))
sys.exit(node.setup(is_terminal=sys.stdin.isatty()))
"""


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", CONFLICT), ("", CONFLICT)])
def test_the_question_is_asked_on_a_terminal(node: Node, answer: str, code: int) -> None:
    """A real one: what would change is shown first, and no answer is a no."""
    node.put(DROP_IN, SHIPPED)
    ours, theirs = os.openpty()
    asking = subprocess.Popen(
        [sys.executable, "-c", ASKING, str(node.root)], stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT
    )
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    said = b""
    with suppress(OSError):  # which is how a terminal says that nobody is left
        while more := os.read(ours, 4096):
            said += more
    os.close(ours)

    assert asking.wait(30) == code, said
    assert b"Change what exists? [y/N]" in said
    assert said.index(b"-pods: {enabled: false}") < said.index(b"Change what exists?")
    assert (node.at(DROP_IN).read_text() == SHIPPED) is bool(code)


def test_a_later_drop_in_decides(node: Node) -> None:
    node.put("etc/kepd/config.d/node.yaml", SHIPPED.replace("{enabled: false}", "{enabled: true}"))

    node.setup()

    assert "pods" not in node.at(DROP_IN).read_text().partition("apiVersion")[2]


def test_a_faulty_configuration_is_mended_first(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.put("etc/kepd/config.d/node.yaml", "kind: [")

    assert node.setup(is_agreed=True) == CONFLICT

    assert "node.yaml" in capsys.readouterr().err


def test_a_program_that_fails_ends_setup_with_what_to_do(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(words: Sequence[str]) -> None:
        command.run_program(["false", *words])

    assert Setup(node.files, node.look, fails).work(is_dry=False, is_agreed=True, is_terminal=False) == FAILURE

    told = capsys.readouterr().err
    assert "ended with 1" in told
    assert "run kepd setup again" in told


def test_what_changed_since_the_look_is_not_overwritten(node: Node) -> None:
    step = WriteFile(path=DROP_IN, mode=0o640, group="kepd", content=b"ours", why="")
    node.put(DROP_IN, "a person's")

    with pytest.raises(OSError, match="changed since"):
        node.files.write(step)

    assert node.at(DROP_IN).read_text() == "a person's"


def test_a_link_that_came_after_the_look_leads_nowhere(node: Node) -> None:
    elsewhere = node.root / "elsewhere"
    elsewhere.mkdir()
    node.at("etc/cni").symlink_to(elsewhere)

    with pytest.raises(OSError, match="changed since"):
        node.files.write(WriteFile(path=CNI_LIST, mode=0o644, group="root", content=b"{}", why=""))
    with pytest.raises(InTheWay, match="/etc/cni is a symbolic link"):
        node.files.make_folder(MakeFolder(path="/etc/cni/net.d", mode=0o755, group="root", why=""))

    assert not list(elsewhere.iterdir())


def test_a_link_in_the_place_of_a_draft_is_taken_away(node: Node) -> None:
    target = node.put("shadow", "secret")
    draft = node.at("etc/kepd/config.d/.00-node.yaml.kepd-setup")
    draft.parent.mkdir()
    draft.symlink_to(target)

    assert node.setup() == 0

    assert target.read_text() == "secret"
    assert not draft.is_symlink()
    assert "serviceCIDRs" in node.at(DROP_IN).read_text()


def test_a_directory_with_content_is_not_replaced(node: Node) -> None:
    node.put("var/lib/kepd/state", "kept")

    with pytest.raises(OSError, match="not empty"):
        node.files.make_folder(MakeFolder(path="/var/lib/kepd", why="", mode=0o700, group="root"))

    assert node.at("var/lib/kepd/state").read_text() == "kept"


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_who_is_not_root_is_told_so(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    told = CliRunner().invoke(main, ["setup", *flags])

    assert told.exit_code == NOT_PERMITTED
    assert "expected root" in told.output


def test_text_of_files_does_not_reach_the_terminal_as_it_is(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.put(f"{UNIT_FOLDER}/pods.conf", "\x1b[2J\n")

    node.setup(is_dry=True)

    assert "\x1b" not in capsys.readouterr().out
