# SPDX-License-Identifier: Apache-2.0
"""A node in one file, and a node from one."""

import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent.host.main import main
from agent.kit.plane_lock import held_plane_lock
from agent.model.exit_codes import CONFLICT, FAILURE
from agent.objects.run.database import Database

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: x}]}\n"
SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {key: tell-nobody-4711}\n"


class Node:
    def __init__(self, folder: Path, name: str = "n1") -> None:
        self.folder = folder
        self.etc, self.state = folder / "etc", folder / "state"
        self.file = self.etc / "config.yaml"
        self.etc.mkdir(parents=True, mode=0o750)
        self.name = name

    def fill(self) -> None:
        self.put("etc/config.yaml", self.configuration())
        head = "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\n"
        self.put("etc/config.d/more.yaml", f"{head}telemetry: {{verbosity: 3}}\n")
        self.put("etc/manifests/web.yaml", POD)
        self.put("state/pods/records/web.json", '{"restarts": 3}')
        self.put("state/pods/web/volumes/data/big", "of the pod")
        self.put("state/claims/default/data/table", "token: of a pod's own")
        self.put("state/services/boot-id", "this boot")
        self.put("state/objects.db", "values of Secrets")
        self.put("state/door/changes.json", "what watchers may ask for")
        self.put("state/images/.draft", "half")
        self.put("state/events.ring", "[]", 0o640)

    def configuration(self) -> str:
        return (
            "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\n"
            f"node: {{name: {self.name}, stateDirectory: {self.state}, runDirectory: {self.folder}/run}}\n"
            f"runtime: {{endpoint: 'unix://{self.folder}/none.sock'}}\nmanifests: {{directory: {self.etc}/manifests}}\n"
        )

    def put(self, name: str, text: str, mode: int = 0o600) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def files(self) -> dict[str, tuple[str, int]]:
        return {
            str(path.relative_to(self.folder)): (path.read_text(), path.stat().st_mode & 0o777)
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and "run" not in path.parts
        }

    def ask(self, *words: str) -> Result:
        return CliRunner().invoke(main, [*words, "--config", str(self.file)])


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path / "one")
    made.fill()
    return made


def test_a_node_is_what_it_was_but_for_data_of_pods_and_this_boot(node: Node, tmp_path: Path) -> None:
    before = node.files()
    written = node.ask("backup", "-o", str(tmp_path / "a"))
    for name in before:
        (node.folder / name).unlink()
    restored = node.ask("restore", str(tmp_path / "a"))

    assert written.exit_code == 0, written.output
    assert restored.exit_code == 0, restored.output
    gone = {
        "state/pods/web/volumes/data/big",
        "state/claims/default/data/table",
        "state/services/boot-id",
        "state/images/.draft",
        "state/objects.db",
        "state/door/changes.json",
    }
    assert node.files() == {name: one for name, one in before.items() if name not in gone}
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("etc/manifests/s.yaml", SECRET, "a Secret"),
        ("etc/manifests/secrets/db/password", "tell-nobody-4711", "a value of a Secret"),
        ("etc/kubeconfig.yaml", "users: [{user: {token: tell-nobody-4711}}]", "a login to a cluster"),
        ("etc/token", "tell-nobody-4711", "what only its reader knows"),
        ("state/door/tokens.json", '{"tokens":{"admin":"x"}}', "what opens the door"),
        ("state/images/hash.key", "x", "the key of what is remembered of logins"),
        ("state/of-another-kepd", "x", "what this kepd does not know"),
        ("state/images/authority.key", "-----BEGIN PRIVATE KEY-----", "a private key"),
        ("state/images/login.json", '{"auths": {"x": {"auth": "eDp5"}}}', "logins to registries"),
    ],
)
def test_a_secret_is_refused_or_left_out_and_named(node: Node, tmp_path: Path, name: str, text: str, what: str) -> None:
    node.put(name, text)
    member = name.replace("etc/manifests", "manifests").replace("etc/", "config/")
    refused = node.ask("backup", "-o", str(tmp_path / "a"))
    left_out = node.ask("backup", "-o", str(tmp_path / "b"), "--without-secrets")
    again = node.ask("restore", str(tmp_path / "b"))

    assert refused.exit_code == FAILURE
    assert f"{member} holds {what}; encrypt with --recipient" in refused.output
    assert not (tmp_path / "a").exists()
    assert f"left out {member}: {what}" in left_out.output
    assert b"tell-nobody-4711" not in (tmp_path / "b").read_bytes()
    assert f"{member} is not in the archive: it held a secret" in again.output


def test_with_a_recipient_all_is_written_and_only_its_key_reads_it(node: Node, tmp_path: Path) -> None:
    node.put("etc/manifests/s.yaml", SECRET)
    (node.state / "objects.db").unlink()
    key, recipient = key_of(tmp_path)
    written = node.ask("backup", "-o", str(tmp_path / "a"), "--recipient", recipient)
    (node.etc / "manifests/s.yaml").unlink()
    without = node.ask("restore", str(tmp_path / "a"))
    restored = node.ask("restore", str(tmp_path / "a"), "--identity", str(key))

    assert written.exit_code == 0, written.output
    assert b"Secret" not in (tmp_path / "a").read_bytes()
    assert "is encrypted; --identity FILE names the key" in without.output
    assert restored.exit_code == 0, restored.output
    assert (node.etc / "manifests/s.yaml").read_text() == SECRET


def key_of(folder: Path) -> tuple[Path, str]:
    made = subprocess.run(
        ["age-keygen", "-o", str(folder / "key")], capture_output=True, text=True, check=True
    )  # fmt: skip
    return folder / "key", made.stderr.split()[-1]


def test_an_encrypted_one_has_what_is_remembered_as_it_was_when_it_was_written(node: Node, tmp_path: Path) -> None:
    """Its latest changes are in the journal beside it, and that of another database must not be played into it."""
    file = node.state / "objects.db"
    file.unlink()
    key, recipient = key_of(tmp_path)
    remembering = Database(file, 1, ("CREATE TABLE words (word TEXT)",))
    with remembering.transaction() as connection:
        connection.execute("INSERT INTO words VALUES ('then')")
    written = node.ask("backup", "-o", str(tmp_path / "a"), "--recipient", recipient)
    with remembering.transaction() as connection:
        connection.execute("UPDATE words SET word = 'later'")
    for more in ("", "-wal"):
        shutil.copy(f"{file}{more}", tmp_path / f"killed{more}")
    remembering.close()
    for more in ("", "-wal"):
        shutil.copy(tmp_path / f"killed{more}", f"{file}{more}")
    refused = node.ask("restore", str(tmp_path / "a"), "--identity", str(key))
    restored = node.ask("restore", str(tmp_path / "a"), "--identity", str(key), "--replace")

    assert written.exit_code == 0, written.output
    assert f"{file} is there with other content" in refused.output
    assert restored.exit_code == 0, restored.output
    assert Database(file, 1, ()).read(lambda found: found.execute("SELECT * FROM words").fetchall(), []) == [("then",)]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_torn_database_is_not_backed_up(node: Node, tmp_path: Path) -> None:
    _, recipient = key_of(tmp_path)
    refused = node.ask("backup", "-o", str(tmp_path / "a"), "--recipient", recipient)

    assert refused.exit_code == FAILURE
    assert "objects.db: file is not a database; start kepd once, which puts a torn database aside" in refused.output


def test_another_machine_gets_it_where_its_own_files_are_and_is_told_of_names(node: Node, tmp_path: Path) -> None:
    node.ask("backup", "-o", str(tmp_path / "a"))
    other = Node(tmp_path / "two", "n2")
    other.put("etc/config.yaml", other.configuration())
    kept = other.ask("restore", str(tmp_path / "a"))
    shown = other.ask("restore", str(tmp_path / "a"), "--dry-run")

    assert kept.exit_code == FAILURE
    assert f"{other.file} is there with other content; --replace writes over it. Unchanged: {other.etc}" in kept.output
    assert f"would write {other.file}" in shown.output
    assert [*other.files()] == ["etc/config.yaml"]
    with tarfile.open(tmp_path / "a") as tar:
        members = [(one, tar.extractfile(one).read()) for one in tar if one.name != "config/config.yaml"]  # type: ignore[union-attr]
    with tarfile.open(tmp_path / "b", "w:gz") as tar:
        for one, content in members:
            tar.addfile(one, io.BytesIO(content))
    moved = other.ask("restore", str(tmp_path / "b"))
    assert moved.exit_code == 0, moved.output
    assert "the archive is of node n1, this one is n2\npods get new names, unless node.name says n1" in moved.output
    assert other.files()["state/pods/records/web.json"] == ('{"restarts": 3}', 0o600)


def test_what_is_written_belongs_to_whom_its_directory_belongs(node: Node, tmp_path: Path) -> None:
    """The group of the configuration may read it, where kepd does not run as root."""
    node.ask("backup", "-o", str(tmp_path / "a"))
    node.file.unlink()
    shutil.rmtree(node.etc / "config.d")
    os.chown(node.etc, 0, 12345)
    done = node.ask("restore", str(tmp_path / "a"))

    assert done.exit_code == 0, done.output
    assert {path.stat().st_gid for path in (node.file, node.etc / "config.d", node.etc / "config.d/more.yaml")} == {
        12345
    }
    assert (node.etc / "config.d").stat().st_mode & 0o777 == 0o750


def test_beside_a_kepd_that_runs_nothing_is_written(node: Node, tmp_path: Path) -> None:
    node.ask("backup", "-o", str(tmp_path / "a"))
    (node.etc / "manifests/web.yaml").unlink()
    with held_plane_lock("pods", f"unix://{node.folder}/none.sock", node.folder / "run"):
        refused = node.ask("restore", str(tmp_path / "a"))

    assert refused.exit_code == CONFLICT
    assert "stop kepd.socket and kepd first" in refused.output
    assert not (node.etc / "manifests/web.yaml").exists()


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes], about: object = None) -> Path:
    first = tarfile.TarInfo("about.json")
    told = json.dumps(about or {"format": 1, "version": "0.9.0", "node": "n1", "written": "x"}).encode()
    with tarfile.open(path, "w:gz") as tar:
        for one, content in ((first, told), *members):
            one.size = len(content)
            tar.addfile(one, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, to
    return made, b"" if to else b"x"


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([member("state/../../escaped")], "is no place below"),
        ([member("/etc/passwd")], "is no place below"),
        ([member("elsewhere/x")], "is no place below"),
        ([member("state/link", tarfile.SYMTYPE, "/etc/shadow")], "is no file"),
        ([member("state/hard", tarfile.LNKTYPE, "about.json")], "is no file"),
    ],
)
def test_what_leads_out_of_its_place_is_refused_as_a_whole(
    node: Node, tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], text: str
) -> None:
    before = node.files()
    refused = node.ask("restore", str(archive(tmp_path / "a", member("state/good"), *members)))

    assert refused.exit_code == FAILURE
    assert text in refused.output
    assert "nothing was changed" in refused.output
    assert node.files() == before


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b\x08half", b"no archive"])
def test_what_is_no_archive_is_refused(node: Node, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    refused = node.ask("restore", str(tmp_path / "a"))

    assert (refused.exit_code, "nothing was changed" in refused.output) == (FAILURE, True)


def test_a_format_of_a_later_kepd_is_refused_with_its_version(node: Node, tmp_path: Path) -> None:
    about = {"format": 2, "version": "3.0.0", "node": "n1", "written": "x"}
    refused = node.ask("restore", str(archive(tmp_path / "a", about=about)))

    assert "format 2, of kepd 3.0.0; this kepd reads format 1" in refused.output
