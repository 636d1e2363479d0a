# SPDX-License-Identifier: Apache-2.0
"""`kepctl node-logs` as root and as members of kepd's groups, over a real daemon and a real journal."""

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.host.other_user import NOBODY, passable
from tests.host.process import PROGRAMS, Kepd
from tests.observe.journals import MICROS, Entry, write_journal

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

BEGAN = 1_750_000_000 * MICROS
READS, OPERATES = 4712, 4713
RED = b"an \x1b[31mescape"


@pytest.fixture(scope="module")
def kepd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kepd]:
    folder = tmp_path_factory.mktemp("k")
    entries = [
        Entry(BEGAN, "kubelet.service", b"first"), Entry(BEGAN + MICROS, "sshd.service", b"who came"),
        Entry(BEGAN + 2 * MICROS, "kubelet.service", RED),
    ]  # fmt: skip
    write_journal(folder / "journal", entries)
    (folder / "log").mkdir()
    (folder / "log/syslog").write_bytes(b"one\ntwo\n")
    (folder / "log/closed").write_bytes(b"closed\n")
    (folder / "log/closed").chmod(0o600)
    extra = (
        "pods: {enabled: false}\nimages: {enabled: false}\n"
        f"telemetry: {{nodeLogs: {{journal: '{folder}/journal', directories: ['{folder}/log']}}}}\n"
    )
    groups = {"KEPD_API__READ_GROUP": str(READS), "KEPD_API__OPERATE_GROUP": str(OPERATES)}
    with Kepd(folder, 0, extra=extra, **groups) as daemon:
        daemon.config.write_text(daemon.config.read_text().replace("readGroup: ''", f"readGroup: {READS}"))
        daemon.config.write_text(daemon.config.read_text().replace("127.0.0.1:0", ""))
        passable(folder)
        daemon.start()
        daemon.wait(daemon.socket.exists, "the socket")
        yield daemon


def ctl(kepd: Kepd, *words: str, groups: tuple[int, ...] = ()) -> subprocess.CompletedProcess[bytes]:
    """As root, or as a member of groups, who may read files of Python but has no other right."""
    command = [str(PROGRAMS / "kepctl"), "--endpoint", str(kepd.socket), *words]
    if groups:
        right = "+dac_read_search"
        user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", f"--groups={','.join(map(str, groups))}"]
        command = ["setpriv", *user, f"--inh-caps={right}", f"--ambient-caps={right}", *command]
    return subprocess.run(command, capture_output=True, check=False, timeout=60)


def test_root_reads_units_and_files(kepd: Kepd) -> None:
    """NLG-01, NLG-09: to a pipe the bytes are as they were written."""
    journal = ctl(kepd, "node-logs", "kubelet", "sshd", "-o", "cat")
    short = ctl(kepd, "node-logs", "kubelet", "--tail", "1")
    file = ctl(kepd, "node-logs", "./syslog", "--tail", "1")

    assert (journal.returncode, journal.stdout) == (0, b"first\nwho came\n" + RED + b"\n")
    assert short.stdout.startswith(b"2025-06-15T")
    assert (file.returncode, file.stdout) == (0, b"two\n")


def test_json_has_the_fields(kepd: Kepd) -> None:
    done = ctl(kepd, "node-logs", "sshd", "-o", "json")

    assert json.loads(done.stdout)["MESSAGE"] == "who came"


def test_a_list_has_what_the_caller_may_read(kepd: Kepd) -> None:
    """NLG-01, NLG-02."""
    root, member = ctl(kepd, "node-logs"), ctl(kepd, "node-logs", groups=(READS,))

    assert {line.split()[0] for line in root.stdout.splitlines()} == {
        b"NAME", b"kubelet.service", b"sshd.service", b"./syslog", b"./closed",
    }  # fmt: skip
    assert {line.split()[0] for line in member.stdout.splitlines()} == {b"NAME", b"kubelet.service", b"./syslog"}


def test_operators_read_their_units_and_nothing_else(kepd: Kepd) -> None:
    """NLG-02."""
    groups = (READS, OPERATES)
    allowed = ctl(kepd, "node-logs", "kubelet", "--tail", "2", "-o", "cat", groups=groups)
    foreign = ctl(kepd, "node-logs", "sshd", groups=groups)
    closed = ctl(kepd, "node-logs", "./closed", groups=groups)
    gone = ctl(kepd, "node-logs", "./gone", groups=groups)

    assert (allowed.returncode, allowed.stdout.splitlines()[0]) == (0, b"first"), allowed.stderr
    assert (foreign.returncode, b"telemetry.nodeLogs.units" in foreign.stderr) == (5, True), foreign.stderr
    assert (closed.returncode, gone.returncode) == (3, 3), (closed.stderr, gone.stderr)
    assert closed.stderr.replace(b"closed", b"gone") == gone.stderr


def test_readers_are_refused(kepd: Kepd) -> None:
    """NLG-01."""
    done = ctl(kepd, "node-logs", "kubelet", groups=(READS,))

    assert (done.returncode, b"needs level operate" in done.stderr) == (5, True), done.stderr


def test_every_call_is_in_the_log_with_its_user(kepd: Kepd) -> None:
    """NLG-13."""
    ctl(kepd, "node-logs", "kubelet", "--grep", "never there", groups=(READS, OPERATES))

    lines = [line for line in kepd.log.read_text().splitlines() if "node_logs_read" in line and "never there" in line]
    assert len(lines) == 1
    assert f"uid={NOBODY}" in lines[0]
    assert "units=kubelet" in lines[0]
    assert "bytes=0" in lines[0]
    assert "end=complete" in lines[0]


def test_all_faults_come_at_once(kepd: Kepd) -> None:
    """NLG-04."""
    done = ctl(kepd, "node-logs", "./syslog", "--boot", "-1", "--priority", "3", "-i")

    assert (done.returncode, len(done.stderr.splitlines())) == (2, 4), done.stderr


def readers(kepd: Kepd) -> list[bytes]:
    """Programs that the daemon has started and that have not ended."""
    assert kepd.process is not None
    pid = kepd.process.pid
    found = []
    for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):
            found.append(Path(f"/proc/{one}/cmdline").read_bytes())
    return [one for one in found if b"journalctl" in one]


def test_what_follows_ends_with_its_caller(kepd: Kepd) -> None:
    """NLG-05, NLG-11: also when that is killed; a third of one user is refused meanwhile."""
    words = [str(PROGRAMS / "kepctl"), "--endpoint", str(kepd.socket), "node-logs", "kubelet", "-f", "--tail", "1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe) as one, subprocess.Popen(words, stdout=pipe) as other:
        for each in (one, other):
            assert each.stdout is not None
            assert each.stdout.readline()
        refused = ctl(kepd, "node-logs", "kubelet", "-f")
        assert len(readers(kepd)) == 2
        one.kill()
        other.send_signal(signal.SIGINT)
    kepd.wait(lambda: not readers(kepd), "the readers end")

    assert (refused.returncode, b"2 of one user" in refused.stderr) == (1, True)
    assert ctl(kepd, "node-logs", "kubelet", "--tail", "1").returncode == 0


def test_a_terminal_sees_escapes_as_text(kepd: Kepd) -> None:
    """NLG-09."""
    leader, follower = pty.openpty()
    command = [str(PROGRAMS / "kepctl"), "--endpoint", str(kepd.socket), "node-logs", "kubelet", "--tail", "1"]
    with subprocess.Popen([*command, "-o", "cat"], stdout=follower, stderr=follower) as running:
        os.close(follower)
        assert running.wait(30) == 0
    shown = os.read(leader, 4096)
    os.close(leader)

    assert shown == b"an \\x1b[31mescape\r\n"
    assert Path(kepd.log).exists()
