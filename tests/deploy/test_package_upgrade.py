# SPDX-License-Identifier: Apache-2.0
"""What the package does to units that run when another version comes, with a systemctl that says what it was asked."""

import subprocess
from pathlib import Path

import pytest

from tests.host.process import ROOT

UNITS = ("kepd.service", "kepd-services.service", "kepd-cri.service")
SYSTEMCTL = """#!/bin/sh
echo "$*" >>{folder}/asked
case "$*" in
"-q is-active "*) grep -qxF "$3" {folder}/active ;;
"show -P LoadState "*) grep -qxF "$4" {folder}/masked && echo masked || echo loaded ;;
"try-restart "*) ! grep -qxF "$2" {folder}/broken ;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with programs in the place of those that the script calls, and its word for a system under systemd."""
    for name in ("py3compile", "systemd-sysusers", "systemd-tmpfiles", "systemctl"):
        program = tmp_path / name
        program.write_text(SYSTEMCTL.format(folder=tmp_path) if name == "systemctl" else "#!/bin/sh\n")
        program.chmod(0o755)
    for name in ("masked", "broken"):
        (tmp_path / name).touch()
    text = (ROOT / "deploy/debian/postinst").read_text()
    for ours, theirs in (("/run/systemd/system", str(tmp_path)), ("/usr/lib/systemd/systemd-sysctl", "true")):
        assert ours in text
        text = text.replace(ours, theirs)
    (tmp_path / "postinst").write_text(text)
    return tmp_path


def configure(machine: Path, before: str) -> tuple[list[str], str]:
    """Which units were to restart, and what is said about it; it must not fail."""
    command = ["env", f"PATH={machine}:/usr/bin:/bin", "sh", str(machine / "postinst"), "configure", before]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    asked = (machine / "asked").read_text().splitlines()
    return [line.split()[1] for line in asked if line.startswith("try-restart")], done.stderr


def test_whatever_can_be_enabled_is_disabled_with_the_package() -> None:
    """CL-1: a link to a unit that is gone would stay."""
    units = [path for path in (ROOT / "systemd").iterdir() if path.is_file()]
    installed = {path.name for path in units if "[Install]" in path.read_text()}

    assert installed <= {*(ROOT / "deploy/debian/prerm").read_text().split()}


def test_another_version_restarts_what_runs_and_nothing_else(machine: Path) -> None:
    """PKG-04."""
    (machine / "active").write_text("kepd.service\nkepd-cri.service\n")

    assert configure(machine, "0.1.0-1") == (["kepd.service", "kepd-cri.service"], "")


def test_a_first_installation_starts_nothing(machine: Path) -> None:
    """PKG-04."""
    (machine / "active").write_text("kepd.service\n")

    assert configure(machine, "") == ([], "")


@pytest.mark.parametrize(
    ("state", "says"), [("masked", "kepd.service is masked"), ("broken", "kepd.service does not start again")]
)
def test_a_unit_that_is_not_restarted_is_named_and_fails_nothing(machine: Path, state: str, says: str) -> None:
    """PKG-04: nor does it keep the other units on the earlier version."""
    (machine / "active").write_text("\n".join(UNITS))
    (machine / state).write_text("kepd.service\n")
    asked, said = configure(machine, "0.1.0-1")

    assert asked[-2:] == [*UNITS[1:]]
    assert says in said
