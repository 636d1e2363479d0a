# SPDX-License-Identifier: Apache-2.0
"""Where pages with names of pods are served, and what a daemon has of them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace as replace_struct

from agent.config.document import Api, Configuration, HttpTls
from agent.config.sections.telemetry import ContainerFigures
from agent.host.compose import compose
from agent.host.plane_checks import page_faults, tls_faults
from agent.kit.logs import Levels
from agent.model.component import Board, State
from agent.model.feed import Feed
from agent.model.pods.space import PodSpace
from agent.model.pods.state import PodState
from agent.model.runtime.event import EventKind, RuntimeEvent
from agent.observe.attach import unit
from agent.observe.attach.unit import OwnPods, file_system_of, serves_pages
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.clock import FakeClock
from tests.fakes.cri import FakeCri
from tests.host.test_key_effects import Running, everything_on
from tests.kit.inputs import inputs_of


def api_at(address: str, clients: str = "", certificate: str = "/c", key: str = "/k") -> Api:
    tls = HttpTls(cert_file=certificate, key_file=key, client_ca_file=clients)
    return replace(Configuration().api, http_address=address, http_tls=tls)


def showing(page: bool | str, api: Api) -> Configuration:
    plain = Configuration()
    figures = ContainerFigures(page=page)  # type: ignore[arg-type]
    return replace(plain, telemetry=replace(plain.telemetry, containers=figures), api=api)


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
    assert serves_pages(showing(page, api_at(address))) is expected


def test_clients_with_a_certificate_may_see_names_of_pods_from_elsewhere() -> None:
    """OBS-09."""
    assert serves_pages(showing("auto", api_at("0.0.0.0:1", "/ca")))
    assert not serves_pages(showing("auto", api_at("", "/ca")))
    assert not serves_pages(showing(False, api_at("0.0.0.0:1", "/ca")))


@pytest.mark.parametrize(
    ("api", "faults"),
    [
        (api_at("0.0.0.0:1", "/ca"), []),
        (api_at("0.0.0.0:1"), []),
        (api_at("0.0.0.0:1", "", "", ""), []),
        (api_at("0.0.0.0:1", "", "/c", ""), ["keyFile not set"]),
        (api_at("0.0.0.0:1", "/ca", "", ""), ["certFile and keyFile not set"]),
        (api_at("", "/ca"), ["set, but api.httpAddress is empty"]),
    ],
)
def test_files_of_a_certificate_are_given_together(api: Api, faults: list[str]) -> None:
    """OBS-09."""
    found = [str(one) for one in tls_faults(showing("auto", api))]

    assert len(found) == len(faults)
    assert all(text in one and one.startswith("api.httpTLS: ") for text, one in zip(faults, found, strict=True))


@pytest.mark.parametrize(
    ("address", "clients", "faults"),
    [("127.0.0.1:1", "", 0), ("0.0.0.0:10241", "", 1), ("", "", 1), ("0.0.0.0:10241", "/ca", 0), ("", "/ca", 1)],
)
def test_a_page_for_everybody_is_refused(address: str, clients: str, faults: int) -> None:
    """OBS-09: a certificate of the server alone keeps nobody out."""
    found = list(page_faults(showing(True, api_at(address, clients))))

    assert len(found) == faults
    assert all(f"readable at {address or 'no address'} without TLS; expected" in str(one) for one in found)


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
    daemon = compose(Running(configuration), Levels(2, {}), {})  # type: ignore[arg-type]
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


class Silent:
    """Events of a runtime to which nothing happens."""

    async def listen(self) -> AsyncIterator[RuntimeEvent]:
        await asyncio.Event().wait()
        yield RuntimeEvent(EventKind.LOST)


async def test_a_kubelet_that_comes_later_gets_its_containers_back(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked for once, at kepd's start, which is before the kubelet's on a node's first boot."""
    signs = [""]
    monkeypatch.setattr(unit, "kubelet_beside", lambda *_: signs[0])
    clock, cri, configuration = FakeClock(), FakeCri(), everything_on(short_path)
    runtime = SimpleNamespace(cri=cri, events=Silent(), containerd=None)
    inputs = replace_struct(inputs_of(configuration, runtime=runtime), clock=clock)  # type: ignore[arg-type]
    node = unit.attach(inputs, None, None)
    (part,) = node.units
    running = asyncio.ensure_future(part.run(Board(lambda: 0.0).add("observe", State.STARTING)))
    foreign = pb.PodSandbox(id="x")
    seen = [node.offers.collector._roster._wants(foreign)]
    signs[0] = "process 9 is a kubelet"
    async with asyncio.timeout(30):
        while node.offers.collector._roster._wants(foreign):
            await asyncio.sleep(0.001)
            await clock.advance(30)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await node.close()

    assert seen == [True]
