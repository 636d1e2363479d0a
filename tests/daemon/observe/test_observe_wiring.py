# SPDX-License-Identifier: Apache-2.0
"""Where pages with names of pods are served, and what a daemon has of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.config.document import Configuration
from agent.config.telemetry import ContainerFigures
from agent.daemon.logs import Levels
from agent.daemon.observe.wiring import OwnPods, file_system_of, serves_pages
from agent.daemon.plane_checks import page_faults
from agent.daemon.wiring import wire
from agent.model.feed import Feed
from agent.model.pod_space import PodSpace
from agent.model.pod_state import PodState
from tests.daemon.test_key_effects import Running, everything_on


@pytest.mark.parametrize(
    ("page", "address", "expected"),
    [
        ("auto", "127.0.0.1:10241", True), ("auto", "[::1]:10241", True), ("auto", "localhost:1", True),
        ("auto", "0.0.0.0:10241", False), ("auto", ":10241", False), ("auto", "[::]:1", False),
        ("auto", "127.0.0.1.example.com:1", False), ("auto", "10.0.0.1:1", False), ("auto", "", False),
        (False, "127.0.0.1:1", False),
    ],
)  # fmt: skip
def test_names_of_pods_stay_on_the_node(page: bool | str, address: str, expected: bool) -> None:
    """OBS-09."""
    assert serves_pages(ContainerFigures(page=page), address) is expected  # type: ignore[arg-type]


@pytest.mark.parametrize(("address", "faults"), [("127.0.0.1:1", 0), ("0.0.0.0:10241", 1), ("", 1)])
def test_a_page_for_everybody_is_refused(address: str, faults: int) -> None:
    """OBS-09."""
    plain = Configuration()
    shown = replace(plain.telemetry, containers=ContainerFigures(page=True))
    found = list(page_faults(replace(plain, telemetry=shown, api=replace(plain.api, http_address=address))))

    assert len(found) == faults
    assert all("names of pods would be readable" in str(one) for one in found)


@pytest.mark.parametrize(
    ("planes", "has_pages"),
    [(("pods",), True), (("pods", "services", "dns"), True), (("services",), False), (("services", "dns"), False)],
)
async def test_a_daemon_without_a_runtime_has_no_figures_of_containers(
    short_path: Path, planes: tuple[str, ...], has_pages: bool
) -> None:
    configuration = everything_on(short_path)
    for name in ("images", "pods", "proxy", "services", "dns"):
        section = replace(getattr(configuration, name), enabled=name in planes)
        configuration = replace(configuration, **{name: section})
    configuration = replace(configuration, devices=Configuration().devices)
    daemon = wire(Running(configuration), Levels(2, {}), {})  # type: ignore[arg-type]
    await daemon.close()

    units = [unit.name for unit in daemon.units]

    assert ("observe" in units) is has_pages
    assert ("runtime" in units) is has_pages


async def test_states_of_pods_are_followed_again_after_a_gap() -> None:
    async def no_spaces() -> list[PodSpace]:
        return []

    feed: Feed[PodState] = Feed()
    changes = OwnPods(feed, lambda _uid: True, no_spaces).changes()
    feed.put("a", PodState(namespace="n", name="a", uid="1", phase="Running"))
    seen = [(await anext(changes)).name]
    for number in range(1500):
        feed.put("a", PodState(namespace="n", name="a", uid="1", phase=f"{number}"))
    while (one := await anext(changes)).phase != "1499":
        seen.append(one.name)
    await changes.aclose()  # type: ignore[attr-defined]

    assert set(seen) == {"a"}


def test_the_file_system_of_a_folder_is_told_with_its_device(tmp_path: Path) -> None:
    found = file_system_of(str(tmp_path))

    assert found is not None
    assert found.size_bytes > 0
    assert found.device
    assert file_system_of(str(tmp_path / "none")) is None
