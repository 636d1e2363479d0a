# SPDX-License-Identifier: Apache-2.0
"""The place where a kubelet finds the proxy: one holder, one link, nothing removed that is another's."""

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.api.socket_path import PathTaken
from agent.kit.plane_lock import PlaneTaken
from agent.proxy.attach.endpoint import ProxyEndpoint


class Place:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cri"
        self.socket, self.link = self.folder / "cri.sock", self.folder / "kubelet.sock"
        self.runtime = folder / "containerd.sock"
        self.open: list[socket.socket] = []

    def endpoint(self, activated: socket.socket | None = None, *, has_link: bool = True) -> ProxyEndpoint:
        return ProxyEndpoint(self.socket, self.link if has_link else None, self.runtime, activated)

    def listening(self, endpoint: ProxyEndpoint) -> socket.socket:
        listener = endpoint.listen()
        self.open.append(listener)
        return listener

    def bound(self, path: Path) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.bind(str(path))
        made.listen()
        self.open.append(made)
        return made

    def lead(self, target: Path) -> None:
        draft = self.folder / "draft"
        draft.symlink_to(target)
        draft.rename(self.link)


@pytest.fixture
def place(short_path: Path) -> Iterator[Place]:
    made = Place(short_path)
    yield made
    for one in made.open:
        one.close()


def test_one_holder_at_a_time_and_the_next_after_it(place: Place) -> None:
    """PRX-5."""
    with (
        place.endpoint().locked(),
        pytest.raises(PlaneTaken, match="is held by process"),
        place.endpoint().locked(),
    ):
        pass
    with place.endpoint().locked():
        assert stat.S_IMODE(place.folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((place.folder / "cri.lock").stat().st_mode) == 0o600


def test_the_link_is_made_kept_and_taken_back(place: Place) -> None:
    """PRX-8, PRX-9: pointing it is what says that we serve."""
    endpoint = place.endpoint()
    with endpoint.locked():
        place.listening(endpoint)
        for before in (None, place.runtime, place.folder / "elsewhere.sock"):
            if before is not None:
                place.lead(before)
                assert endpoint.state() == "superseded"
            endpoint.point_link()

            assert place.link.readlink() == place.socket
            assert endpoint.state() == "ours"


def test_a_link_that_is_removed_is_made_again(place: Place) -> None:
    endpoint = place.endpoint()
    with endpoint.locked():
        place.listening(endpoint)
        endpoint.point_link()
        place.link.unlink()

        assert endpoint.state() == "ours"
        assert place.link.readlink() == place.socket


def test_what_is_no_link_is_not_replaced(place: Place) -> None:
    endpoint = place.endpoint()
    with endpoint.locked():
        place.listening(endpoint)
        place.link.write_text("precious")
        with pytest.raises(PathTaken, match="is not a symlink"):
            endpoint.point_link()

    assert place.link.read_text() == "precious"


def test_a_socket_that_is_gone_or_another_s_is_lost_and_left_alone(place: Place) -> None:
    """PRX-5."""
    endpoint = place.endpoint(has_link=False)
    with endpoint.locked():
        place.listening(endpoint)
        assert endpoint.state() == "ours"
        place.socket.unlink()
        assert endpoint.state() == "lost"
        place.bound(place.socket)
        assert endpoint.state() == "lost"
        endpoint.leave()

        assert place.socket.exists()


def test_an_end_takes_the_socket_and_leaves_the_link(place: Place) -> None:
    endpoint = place.endpoint()
    with endpoint.locked():
        place.listening(endpoint)
        endpoint.point_link()
        endpoint.leave()

    assert not place.socket.exists()
    assert place.link.is_symlink()


def test_a_socket_of_the_service_manager_outlives_the_process(place: Place) -> None:
    """IMG-X10: who connects in between waits in line."""
    place.folder.mkdir(mode=0o700)
    activated = place.bound(place.socket)
    endpoint = place.endpoint(activated)
    with endpoint.locked():
        place.listening(endpoint).close()
        assert endpoint.state() == "ours"
        endpoint.leave()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(place.socket))
    place.socket.unlink()
    assert endpoint.state() == "lost"
    with endpoint.locked():
        place.listening(endpoint)

        assert endpoint.state() == "ours"
