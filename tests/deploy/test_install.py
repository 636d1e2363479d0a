# SPDX-License-Identifier: Apache-2.0
"""`make install`: what it puts where, what the units say about that, and how much they may do."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from agent.config.effective import enabled_planes
from agent.config.sources import Sources, host_facts, load
from tests.deploy.installing import install

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "systemd"
PREFIX = "/opt/kepd"
MOST_EXPOSED = 25
"""In tenths, as systemd-analyze takes it (SYS-10)."""
MOST_EXPOSED_WITH_PODS = 45
MOST_EXPOSED_WITH_BOTH = 47
"""CAP_NET_ADMIN on top. Less needs a mount namespace, no mounts, or a user other than root."""

pytestmark = pytest.mark.timeout(300)


def settings(unit: Path) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        key, sign, value = line.partition("=")
        if sign and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.node
def test_everything_that_is_listed_is_there_and_the_programs_run(installed: Path) -> None:
    """PKG-01: a package is made with DESTDIR, so nothing may know of it."""
    listed = install(installed, "--list").split()
    program = installed / f"{PREFIX[1:]}/bin/kepd"
    ran = subprocess.run(
        [str(program.parent / "python"), str(program), "config", "defaults"], capture_output=True, text=True, check=True
    )
    names = {path.name for path in (installed / PREFIX[1:]).glob("lib/python3*/site-packages/kepd_*")}
    parts = {name for name in names if not name.endswith(".dist-info")}
    texts = [path for path in (installed / PREFIX[1:] / "bin").iterdir() if path.is_file() and not path.is_symlink()]

    assert [path for path in listed if not (installed / path[1:]).exists() and "/usr/local" not in path] == []
    assert (installed / "usr/local/bin/kepctl").readlink() == Path(f"{PREFIX}/bin/kepctl")
    assert "apiVersion: config.kepd.dev/v1beta1" in ran.stdout
    assert parts == {path.name for path in ROOT.glob("packages/*/kepd_*")}
    assert [path.name for path in texts if str(installed).encode() in path.read_bytes()] == []
    assert ".SS get" in (installed / "usr/local/share/man/man1/kepctl.1").read_text()
    assert ".SS run" in (installed / "usr/local/share/man/man8/kepd.8").read_text()
    for place in ("bash-completion/completions/kepctl", "zsh/site-functions/_kepctl"):
        assert "_KEPCTL_COMPLETE" in (installed / "usr/local/share" / place).read_text()
    assert "kepctl" in (installed / "usr/local/share/fish/vendor_completions.d/kepctl.fish").read_text()
    assert (installed / "etc/kepd/config.yaml").stat().st_mode & 0o777 == 0o640


@pytest.mark.node
def test_units_start_programs_with_configurations_that_are_installed(installed: Path) -> None:
    """A fresh clone, the unit files' paths and the installed files agree."""
    for unit in (installed / "usr/lib/systemd/system").glob("kepd*.service"):
        for line in settings(unit)["ExecStart"]:
            program, *words = line.split()
            assert program.startswith(("/bin/", "/usr/sbin/")) or (installed / program[1:]).exists(), line
            assert all((installed / word[1:]).exists() for word in words if word.startswith("/etc/")), line
        assert "@" not in settings(unit)["ExecStart"][0]


@pytest.mark.node
def test_a_removal_leaves_configuration_alone(installed: Path, tmp_path: Path) -> None:
    """And a configuration that is there is not overwritten."""
    edited = installed / "etc/kepd/services.yaml"
    before = edited.read_text()
    copy = tmp_path / "root"
    subprocess.run(["cp", "-a", str(installed), str(copy)], check=True)
    (copy / "etc/kepd/services.yaml").write_text("mine\n")
    install(copy, "--remove")
    left = [path.relative_to(copy) for path in copy.rglob("*") if not path.is_dir()]

    assert {path.parts[:2] for path in left} == {("etc", "kepd")}
    assert (copy / "etc/kepd/services.yaml").read_text() == "mine\n"
    assert edited.read_text() == before


def test_a_removal_works_without_another_root(tmp_path: Path) -> None:
    """CL-1: `make uninstall` of a plain installation removed nothing and ended with an error."""
    places = {"PREFIX": "opt/kepd", "LIBDIR": "usr/lib", "BINDIR": "usr/local/bin", "SYSCONFDIR": "etc"}
    places["DATADIR"] = "usr/local/share"
    environment = {"PATH": os.environ["PATH"], **{name: str(tmp_path / place) for name, place in places.items()}}
    run = partial(subprocess.run, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    listed = [Path(line) for line in run(["scripts/install", "--list"]).stdout.split()]
    for path in [*(one for one in listed if one.name != "kepd"), tmp_path / "etc/kepd/config.yaml"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("installed\n")
    (tmp_path / "opt/kepd/bin").mkdir(parents=True)
    run(["make", "-s", "uninstall"])

    assert [path for path in listed if path.exists()] == []
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == [tmp_path / "etc/kepd/config.yaml"]


@pytest.mark.parametrize("prefix", ["/", "//", "opt/kepd", "."])
def test_a_removal_of_everything_is_refused(prefix: str) -> None:
    """CL-1: what is removed is all below PREFIX."""
    ran = subprocess.run(
        ["scripts/install", "--remove"], cwd=ROOT, env={"PATH": os.environ["PATH"], "PREFIX": prefix},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ran.returncode == 2
    assert f'PREFIX is "{prefix}"; expected: an absolute path' in ran.stderr


def ran_install(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["scripts/install", *arguments], cwd=ROOT, env={"PATH": os.environ["PATH"], **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_an_interpreter_below_a_home_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """CL-5: nobody else could run what it would make."""
    home = str(Path(sys.executable).resolve().parents[1])
    done = ran_install(PYTHON=sys.executable, HOME=home, PREFIX=str(tmp_path / "kepd"))

    assert done.returncode == 2
    assert "is below a home" in done.stderr
    assert "expected: PYTHON=/usr/bin/python3" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_systems_interpreter_comes_before_one_that_a_user_has_in_path(tmp_path: Path) -> None:
    """CL-5."""
    own = tmp_path / "python3.11"
    own.symlink_to(sys.executable)
    found = ran_install("--interpreter", PATH=f"{tmp_path}:{os.environ['PATH']}").stdout.strip()
    usual = [path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()]

    assert found.startswith(("/usr/bin/", "/usr/local/bin/")) if usual else found == str(own)
    assert ran_install("--interpreter", PYTHON=str(own)).stdout.strip() == str(own)


def test_what_is_too_old_or_no_python_is_named(tmp_path: Path) -> None:
    done = ran_install("--interpreter", PYTHON="/bin/false")

    assert done.returncode == 1
    assert "/bin/false is no Python 3.11 or later" in done.stderr


@pytest.fixture
def runnable(tmp_path: Path) -> Path:
    """The units with programs that exist, as systemd looks for them on this machine."""
    folder = tmp_path / "units"
    folder.mkdir()
    (tmp_path / "bin").mkdir()
    for program in ("kepd", "kepd-dns"):
        (tmp_path / "bin" / program).symlink_to("/bin/true")
    for unit in (*UNITS.glob("kepd*.service"), *UNITS.glob("kepd*.socket")):
        (folder / unit.name).write_text(unit.read_text().replace("@PREFIX@", str(tmp_path)))
    return folder


def test_systemd_finds_no_fault_in_the_units(runnable: Path) -> None:
    """SYS-01 to SYS-08."""
    units = sorted(str(path) for path in runnable.iterdir())
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    about_ours = [line for line in done.stderr.splitlines() if re.match(r"(/\S*/)?kepd[-a-z]*\.", line)]

    assert about_ours == []
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("unit", ["kepd.service", "kepd-services.service", "kepd-cri.service", "kepd-dns.service"])
def test_a_unit_may_do_little_more_than_it_has_to(runnable: Path, unit: str) -> None:
    """SYS-10, DNS-2: an empty unit has 9.6."""
    check_exposure(runnable / unit, MOST_EXPOSED)


def check_exposure(unit: Path, most: int) -> None:
    argv = ["systemd-analyze", "security", "--offline=true", f"--threshold={most}", str(unit)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("drop_ins", "most"),
    [(["pods.conf"], MOST_EXPOSED_WITH_PODS), (["pods.conf", "services.conf"], MOST_EXPOSED_WITH_BOTH)],
)
def test_with_pods_a_unit_may_do_little_more_than_they_have_to(
    runnable: Path, tmp_path: Path, drop_ins: list[str], most: int
) -> None:
    """SYS-10. A unit and its drop-ins in one file: of files outside /etc, systemd-analyze reads no drop-ins."""
    whole = tmp_path / "kepd.service"
    texts = [(UNITS / "kepd.service.d" / name).read_text() for name in drop_ins]
    whole.write_text("".join([(runnable / "kepd.service").read_text(), *texts]))

    check_exposure(whole, most)


def test_as_a_driver_beside_a_kubelet_a_unit_writes_three_directories_more() -> None:
    """DVF-9, DVD-23: and its own groups. With pods of its own devices can be opened; no namespace for mounts comes back
    by that."""
    whole = settings(UNITS / "kepd.service")
    names = ("device-driver", "device-front", "devices")
    driver, front, devices = (settings(UNITS / f"kepd.service.d/{name}.conf") for name in names)

    groups = [f"-/sys/fs/cgroup/{one}system.slice/%n" for one in ("", "unified/", "systemd/")]
    assert [one["ReadWritePaths"] for one in (driver, front)] == [
        ["-/run/cdi -/var/lib/kubelet/plugins -/var/lib/kubelet/plugins_registry", " ".join(groups)],
        ["-/var/lib/kubelet/device-plugins", " ".join(groups)],
    ]
    assert {key for one in (driver, front) for key in one if whole.get(key) == one[key]} == set()
    assert devices == {"DevicePolicy": ["auto"], "Delegate": ["yes"]}


def test_services_without_root_may_have_names(tmp_path: Path) -> None:
    """DNS-1: the file says which planes there are; a flag would take that out of its hands."""
    file = tmp_path / "services.yaml"
    text = (UNITS / "services.yaml").read_text()
    found = []
    for one in (text, text.replace("dns: {enabled: false}", "dns: {enabled: true}")):
        file.write_text(one)
        checked = load(Sources(file=file, environment={}), host_facts({}))
        assert checked.configuration is not None
        found.append(enabled_planes(checked.configuration))

    assert "--planes" not in settings(UNITS / "kepd-services.service")["ExecStart"][0]
    assert found == [("services",), ("services", "dns")]


def test_the_drop_in_for_pods_takes_back_every_mount_namespace() -> None:
    """SYS-15: a mount made in one never reaches containerd."""
    whole, drop_in = settings(UNITS / "kepd.service"), settings(UNITS / "kepd.service.d/pods.conf")
    makes_one = [key for key in whole if key.startswith(("Protect", "Private")) or key == "ReadWritePaths"]
    # About system calls and devices alone.
    makes_one.remove("ProtectClock")

    assert {key: drop_in[key] for key in makes_one if drop_in[key] not in (["no"], ["default"], [""])} == {}
    assert drop_in["CapabilityBoundingSet"][0] == "", "those of Services come by services.conf"
    assert set(drop_in["CapabilityBoundingSet"][1].split()) == {
        "CAP_SYS_ADMIN", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID",
    }  # fmt: skip


@pytest.mark.parametrize("unit", ["kepd.service", "kepd-services.service", "kepd-cri.service"])
def test_units_follow_the_daemon_as_it_is(unit: str) -> None:
    """SYS-01 to SYS-07."""
    found = settings(UNITS / unit)

    assert found["Type"] == ["notify"]
    assert found["KillMode"] == ["mixed"]
    assert found["RuntimeDirectoryPreserve"] == ["yes"]
    assert found["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert not {"Requires", "BindsTo"} & found.keys()
    assert found["WatchdogSec"] == ["30"]
