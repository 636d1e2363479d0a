# SPDX-License-Identifier: Apache-2.0
"""The settings of images that containerd 2.x keeps in its file alone."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.drivers.cri.image_settings import MOST_BYTES, config_file, read_image_settings

LISTENER = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(); input()"
IMAGES = "[plugins.'io.containerd.cri.v1.images']\n"
VERSION_3 = f"""
version = 3
{IMAGES}
  snapshotter = 'stargz'
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = '/opt/certs.d'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = 'r.io/pause:9'
"""
VERSION_2 = """
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "r.io/pause:9"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "stargz"
    disable_snapshot_annotations = false
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/opt/certs.d"
"""
Listen = Callable[[Path], str]


@pytest.fixture
def listening(short_path: Path) -> Iterator[Listen]:
    """A process that listens, and was started with a configuration file."""
    running = []

    def start(config: Path) -> str:
        socket = short_path / "c.sock"
        script = short_path / "listener.py"
        script.write_text(LISTENER)
        command = [sys.executable, str(script), str(socket), f"--config={config}"]
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        running[0].stdout.readline()
        return f"unix://{socket}"

    yield start
    for process in running:
        process.communicate(b"\n")


@pytest.mark.parametrize(("content", "is_off"), [(VERSION_3, True), (VERSION_2, False)])
async def test_they_are_read_from_the_file_that_the_listener_was_given(
    content: str, *, is_off: bool, short_path: Path, listening: Listen
) -> None:
    config = short_path / "config.toml"
    config.write_text(content)

    assert await read_image_settings(listening(config)) == {
        "registry": {"configPath": "/opt/certs.d"},
        "sandboxImage": "r.io/pause:9",
        "containerd": {"snapshotter": "stargz", "disableSnapshotAnnotations": is_off},
    }


async def test_an_import_has_the_last_word_and_may_name_itself(short_path: Path, listening: Listen) -> None:
    config = short_path / "config.toml"
    config.write_text(f"imports = ['conf.d/*.toml', '{config}']\n{VERSION_3}")
    (short_path / "conf.d").mkdir()
    (short_path / "conf.d/a.toml").write_text(
        f"{IMAGES}[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '/b'\n"
    )

    found = await read_image_settings(listening(config))

    assert (found["registry"], found["sandboxImage"]) == ({"configPath": "/b"}, "r.io/pause:9")


@pytest.mark.parametrize("content", ["", "not toml", "plugins = 3", IMAGES + "registry = 3", "a = " + "[" * 5000, None])
async def test_of_what_cannot_be_read_nothing_is_known(
    content: str | None, short_path: Path, listening: Listen
) -> None:
    config = short_path / "config.toml"
    config.write_text(content if content is not None else "#" * (MOST_BYTES + 1))

    assert not {"registry", "sandboxImage"} & (await read_image_settings(listening(config))).keys()


async def test_nobody_at_the_socket_tells_nothing(short_path: Path) -> None:
    assert await read_image_settings(f"unix://{short_path}/nobody.sock") == {}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("containerd", "/etc/containerd/config.toml"),
        ("containerd -c /a", "/a"),
        ("containerd --log-level info --config /a", "/a"),
        ("containerd --config=/a -l debug", "/a"),
        ("containerd -c", ""),
        ("containerd config", "/etc/containerd/config.toml"),
    ],
)
def test_the_file_of_a_command_line(arguments: str, expected: str) -> None:
    assert config_file(arguments.split()) == expected
