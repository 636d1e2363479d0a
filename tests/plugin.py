# SPDX-License-Identifier: Apache-2.0
"""What every test may use: who may run what, and the lab."""

import asyncio
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from tests.lab.fixtures import lab, network, network_of_module, throttle
from tests.ports import take_port

__all__ = ["lab", "network", "network_of_module", "throttle"]

# They take longest, some with few tests. First of all, so that at the end no process works on one of them alone.
SLOWEST = (
    "test_images", "test_services", "test_hostile_services", "test_pod_timelines", "test_cri_proxy",
    "test_systemd_boot", "test_services_daemon", "test_dns_cluster", "test_dns", "test_hostile_clients",
    "test_eviction", "test_pod_life", "test_devices", "test_documents", "test_cri_endpoint", "test_everyday",
    "test_greed", "test_pod_streams", "test_hostile_containers", "test_pod_kills", "test_observation", "test_daemon",
    "test_upkeep", "test_workloads", "test_service_tampering", "test_boot_guard", "test_debug", "test_broken_starts",
)  # fmt: skip

# How long an example takes says nothing on a machine that has other work.
settings.register_profile("kepd", deadline=None)
settings.load_profile("kepd")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--vectors DIR` runs recorded cases from another directory."""
    here = Path(__file__).parent / "vectors"
    parser.addoption("--vectors", type=Path, default=here, metavar="DIR", help="directory with vector files")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """A directory of our own, or pytest clears away those of earlier runs, and fails where one cannot be removed.

    No loop outside tests, or asyncio makes one that stays open; and SIGINT as a program finds it in a terminal.

    Whoever starts the tests in the background of a script hands SIGINT down as ignored, to every program they start.
    A failure is logged as the daemon does it: drawing all values of all frames takes seconds. Manifests that a group
    may write are refused, so the umask of a developer with a group of their own does not count.
    """
    drawn = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure([*structlog.get_config()["processors"][:-1], drawn])
    os.umask(0o022)
    if not config.option.basetemp:
        folder = tempfile.mkdtemp(prefix="test-kepd-")
        config.option.basetemp = f"{folder}/t"
        config.add_cleanup(lambda: subprocess.run(["rm", "-rf", "--one-file-system", folder], check=False))
    asyncio.set_event_loop(None)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests on real containers need root; tests on a real API server need one. The report says what was left out.

    Comparisons with programs of Kubernetes are chosen only where one is given. A virtual machine is made only for who
    asks for one: it takes minutes.
    """
    beside = {item: mark.args[0] for item in items if (mark := item.get_closest_marker("beside"))}
    left_out = [item for item, variable in beside.items() if not os.environ.get(variable)]
    if "vm" not in config.option.markexpr:
        left_out += [item for item in items if item.get_closest_marker("vm")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
    turns = {name: number for number, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: turns.get(item.path.stem, len(turns)))
    for item in items:
        if item.get_closest_marker("node") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root: real containers and network namespaces"))
        if item.get_closest_marker("kube") and not os.environ.get("KUBECONFIG"):
            item.add_marker(pytest.mark.skip(reason="needs an API server: set KUBECONFIG"))


@pytest.fixture
def short_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose path is short enough for unix sockets."""
    path = tmp_path_factory.mktemp("k")
    assert len(str(path)) < 80
    return path


@pytest.fixture
def free_port() -> int:
    """A TCP port of loopback that nobody listens on now."""
    return take_port()
