# SPDX-License-Identifier: Apache-2.0
"""The core where the planes that are packages of their own are not installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent.config.packages import PACKAGES
from agent.model.exit_codes import BAD_CONFIGURATION, UNREACHABLE, USAGE
from packages.rehearsal.tests.clusters import WEB
from scripts.sbom import PARTS
from tests.host.process import PROGRAMS, ROOT, Kepd

# A module that is None here is one that cannot be found.
WITHOUT = f"import sys\nsys.modules.update(dict.fromkeys({[one.replace('-', '_') for one in PACKAGES.values()]}))\n"


@pytest.fixture
def core(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that has the core alone."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(WITHOUT)
    return {"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def run(core: dict[str, str], program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAMS / program, *words], env=core, capture_output=True, text=True, check=False)


def test_each_package_is_known_and_named_where_trees_are_built_and_installed() -> None:
    """One that a script leaves out would be missing from the Debian package, the image or the list of parts."""
    parts = [path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")]
    scripts = {name: (ROOT / "scripts" / name).read_text() for name in ("install", "prepare", "test")}
    missing = [(name, part) for name, text in scripts.items() for part in parts if f"packages/{part}" not in text]

    assert {part: f"kepd-{part}" for part in parts} == PACKAGES
    assert sorted(PARTS) == sorted(PACKAGES.values())
    assert missing == []
    assert [name for name in PARTS if name not in scripts["install"]] == []


def test_the_daemon_runs_and_says_what_is_not_installed(tmp_path: Path, core: dict[str, str], free_port: int) -> None:
    with Kepd(tmp_path, free_port, **core) as kepd:
        kepd.start().wait(lambda: kepd.get("/livez")[0] == 200, "an answer")
        planes = kepd.ctl("get", "planes").stdout
        refused = kepd.ctl("get", "devices")

    assert "not installed here: it is the package kepd-dns" in planes
    assert "not installed here: it is the package kepd-devices" in planes
    assert refused.returncode != 0
    assert "devices plane does not run here; it is not installed here: it is the package" in refused.stderr


@pytest.mark.parametrize(
    ("plane", "switches"),
    [("dns", ("dns.enabled=true", "services.enabled=true")), ("devices", ("devices.driver.enabled=true",))],
)
def test_a_plane_that_is_switched_on_must_be_installed(core: dict[str, str], plane: str, switches: tuple[str]) -> None:
    settings = [word for switch in switches for word in ("--set", switch)]

    checked = run(core, "kepd", "config", "check", *settings)

    assert checked.returncode == BAD_CONFIGURATION
    assert f"{plane}: is switched on, and not installed here: it is the package kepd-{plane}" in checked.stderr


def test_live_screens_are_refused(core: dict[str, str]) -> None:
    told = run(core, "kepctl", "ui")

    assert told.returncode == USAGE
    assert "the live screen is not installed here: it is the package kepd-ui" in told.stderr


@pytest.mark.parametrize("words", [("explain", "dns", "web"), ("explain", "claim", "web")])
def test_what_kepctl_reads_without_a_daemon_is_refused(core: dict[str, str], tmp_path: Path, words: tuple[str]) -> None:
    told = run(core, "kepctl", *words, "--from-files", str(tmp_path))

    assert told.returncode == USAGE
    assert "not installed here: it is the package" in told.stderr


@pytest.mark.parametrize("words", [(), ("--from-files", "/", "--drain", "n0", "-o", "json"), ("--no-such-option",)])
def test_a_rehearsal_is_refused(core: dict[str, str], words: tuple[str, ...]) -> None:
    told = run(core, "kepctl", "what-if", *words)

    assert (told.returncode, told.stdout) == (USAGE, "")
    assert told.stderr == "kepctl: what-if is not installed here: it is the package kepd-rehearsal\n"


def test_the_help_of_a_rehearsal_says_what_to_install(core: dict[str, str]) -> None:
    told = run(core, "kepctl", "what-if", "--help")

    assert told.returncode == 0
    assert "It is not installed here: it is the package kepd-rehearsal." in " ".join(told.stdout.split())
    assert "what-if" in run(core, "kepctl", "--help").stdout


EXTRAS = ("dbus_fast", "iptc", "opentelemetry", "kepd_devices", "kepd_dns", "kepd_door", "kepd_ui")


@pytest.mark.parametrize(
    ("source", "loaded", "code"),
    [
        ("--from-files", ["google"], 0),
        ("--kubeconfig", ["aiohttp", "google"], UNREACHABLE),
        ("--from-node", ["google", "grpc", "structlog"], 0),
    ],
)
def test_a_rehearsal_needs_nothing_of_the_daemon(
    tmp_path: Path, free_port: int, source: str, loaded: list[str], code: int
) -> None:
    """Of the extras nothing can be found here, and of what the daemon alone needs nothing is loaded."""
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests/node.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": WEB}))
    context = {"name": "c", "context": {"cluster": "c"}}
    cluster = {"name": "c", "cluster": {"server": f"https://127.0.0.1:{free_port}"}}
    content = {"kind": "Config", "current-context": "c", "contexts": [context], "clusters": [cluster]}
    (tmp_path / "kubeconfig").write_text(json.dumps(content))
    head = "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\nnode: {name: n0}\n"
    (tmp_path / "kepd.yaml").write_text(f"{head}manifests: {{directory: {tmp_path}/manifests}}\n")
    words = {
        "--from-files": [f"{tmp_path}/manifests"], "--kubeconfig": [f"{tmp_path}/kubeconfig"],
        "--from-node": ["--config", f"{tmp_path}/kepd.yaml"],
    }  # fmt: skip
    told = "print([m for m in ('grpc', 'google', 'aiohttp', 'structlog', 'prometheus_client') if m in sys.modules])"
    script = f"import atexit, sys; sys.modules.update(dict.fromkeys({EXTRAS})); atexit.register(lambda: {told})"
    arguments = ["kepctl", "--endpoint", f"{tmp_path}/none", "what-if", source, *words[source], "--drain", "n0"]
    script += f"; sys.argv = {arguments!r}; from agent.cli.start import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == code, done.stderr
    assert set(json.loads(done.stdout.splitlines()[-1].replace("'", '"'))) == set(loaded)
