# SPDX-License-Identifier: Apache-2.0
"""CDI files: what is wrong with them, which of them counts, and what they become for a runtime without CDI."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from agent.model.devices.container_devices import ContainerDevices, DeviceMount, DeviceNode
from kepd_devices.cdi.merging import (
    CannotMerge,
    Catalogue,
    CdiFile,
    HostNode,
    NotResolved,
    check_seen,
    merge,
    nodes_of,
)
from kepd_devices.cdi.spec import CdiSpec, parse_id, parse_spec, version_needed
from kepd_devices.run.cdi_directories import CdiDirectories
from kepd_devices.view.cdi_text import cdi_listed
from packages.devices.tests.written import changed

GOOD = """
cdiVersion: 1.1.0
kind: example.com/gpu
annotations: {maker: example}
containerEdits: {env: [ALL=1]}
devices:
- name: "0"
  containerEdits:
    env: [GPU=0, EMPTY=]
    deviceNodes: [{path: /dev/gpu0, hostPath: /dev/null, type: c, major: 1, minor: 3, permissions: rw}]
    mounts: [{hostPath: /usr/lib/gpu, containerPath: /usr/lib/gpu, options: [ro, bind]}]
    additionalGids: [44]
- name: all
  containerEdits: {env: [GPU=all]}
"""
NULL = HostNode(type="c", major=1, minor=3, mode=0o666)
HOST = {"/dev/null": NULL}
BAD = """
cdiVersion = "9.0" => cdiVersion: is '9.0'; expected one of 0.3.0
cdiVersion = - => cdiVersion: is missing
cdiVersion = 0.6.0 => cdiVersion: is 0.6.0; expected 0.7.0 or later, for additionalGids
kind = - => kind: is missing; expected VENDOR/CLASS
kind = example.com => kind: 'example.com' is no kind; expected VENDOR/CLASS
kind = a/gpu => kind: its vendor 'a' has one sign, on which containerd 2 crashes
kind = example.com/g => kind: its class 'g' has one sign
kind = 1com/gpu => kind: its vendor '1com' is no name
colour = red => colour: not supported by this version
devices = [] => devices: is empty; expected a device
devices[0].name = "a b" => devices[0].name: 'a b' is no name of a device
devices[1].name = "0" => devices[1].name: '0' stands twice
devices[1].containerEdits = {} => devices[1].containerEdits: is empty; expected at least one edit
devices[1].containerEdits.env = [GPU] => devices[1].containerEdits.env[0]: is no variable
devices[1].containerEdits.env = ["=1"] => devices[1].containerEdits.env[0]: is no variable
containerEdits.env = yes => containerEdits.env: must be a list
devices[0].containerEdits.deviceNodes[0].path = dev/gpu0 => deviceNodes[0].path: 'dev/gpu0' is no absolute path
devices[0].containerEdits.deviceNodes[0].path = - => deviceNodes[0].path: is missing
devices[0].containerEdits.deviceNodes[0].hostPath = /dev/../etc => hostPath: '/dev/../etc' is no absolute path
devices[0].containerEdits.deviceNodes[0].type = d => deviceNodes[0].type: 'd' is not known
devices[0].containerEdits.deviceNodes[0].permissions = rx => deviceNodes[0].permissions: 'rx' is not known
devices[0].containerEdits.deviceNodes[0].major = -1 => deviceNodes[0].major: is -1; expected 0 or more
devices[0].containerEdits.mounts[0].hostPath = - => mounts[0].hostPath: is missing
devices[0].containerEdits.mounts[0].containerPath = usr => mounts[0].containerPath: 'usr' is no absolute path
devices[0].containerEdits.hooks = [{hookName: now, path: /bin/x}] => hooks[0].hookName: 'now' is not known
devices[0].containerEdits.hooks = [{hookName: poststop, path: x}] => hooks[0].path: 'x' is no absolute path
devices[0].containerEdits.netDevices = [{name: eth1}] => netDevices[0].hostInterfaceName: is missing
devices[0].containerEdits.additionalGids = [-4] => additionalGids[0]: -4 is no group
"""
CASES = [
    (*(one.strip() for one in line.partition(" => ")[0].split(" = ")), line.partition(" => ")[2])
    for line in BAD.strip().splitlines()
]


def spec(text: str = GOOD) -> CdiSpec:
    found, findings = parse_spec("/etc/cdi/a.yaml", text.encode())
    assert found is not None, findings
    return found


def catalogue(*texts: str, directory: int = 0) -> Catalogue:
    return Catalogue(
        [CdiFile(f"/cdi/{place}.yaml", directory, spec(text)) for place, text in enumerate(texts)], ["/cdi"]
    )


def merged(*ids: str, text: str = GOOD, host: Any = HOST, private: tuple[str, ...] = ()) -> ContainerDevices:
    known = catalogue(text)
    return merge([known.resolve(one) for one in ids], host, private)


@pytest.mark.parametrize(("path", "value", "complaint"), CASES)
def test_a_bad_file_is_refused_with_its_line(path: str, value: str, complaint: str) -> None:
    """DVC-6."""
    found, findings = parse_spec("/etc/cdi/a.yaml", changed(GOOD, path, value).encode())

    assert found is None
    assert any(complaint in str(one) for one in findings), findings
    assert all(str(one).startswith("/etc/cdi/a.yaml:") and "\n" not in str(one) for one in findings)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "has 0 documents; expected one"),
        (b"{", "not YAML"),
        (b"[1]", "must be a map"),
        (b"\xff", "not YAML"),
        (b"a: 1\na: 2", "key 'a' occurs again"),
        (b" " * (1 << 20) + b"a", "has 1048577 bytes; expected at most 1048576"),
        (b"[" * 1000, "nested deeper than 64"),
    ],
)
def test_what_is_no_file_of_cdi_is_one_finding(content: bytes, complaint: str) -> None:
    """DVC-6, DVV-11."""
    found, findings = parse_spec("/etc/cdi/a.json", content)

    assert found is None
    assert len(findings) == 1
    assert complaint in str(findings[0])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gpu", "expected VENDOR/CLASS=NAME"),
        ("example.com/gpu", "expected VENDOR/CLASS=NAME"),
        ("example.com=0", "expected VENDOR/CLASS=NAME"),
        ("e/gpu=0", "its vendor 'e' has one sign"),
        ("example.com/g=0", "its class 'g' has one sign"),
        ("example.com/gpu=", "'' is no name of a device"),
        ("example.com/gpu=a/b", "'a/b' is no name of a device"),
        ("-a.com/gpu=0", "its vendor '-a.com' is no name"),
    ],
)
def test_a_bad_id_says_what_is_wrong(text: str, complaint: str) -> None:
    """DVC-9."""
    with pytest.raises(ValueError, match=r"is no CDI id") as caught:
        parse_id(text)

    assert complaint in str(caught.value)


def test_the_version_that_is_needed_follows_from_what_is_used() -> None:
    """DVD-22."""
    bare = CdiSpec(cdi_version="0.3.0", kind="example.com/gpu", devices=spec().devices[1:])

    assert version_needed(spec())[0] == "0.7.0"
    assert version_needed(bare)[0] == "0.3.0"
    assert version_needed(msgspec.structs.replace(bare, kind="example.com/gpu.big"))[0] == "0.6.0"


def test_edits_of_the_file_come_once_and_before_those_of_devices() -> None:
    """DVC-3."""
    found = merged("example.com/gpu=0", "example.com/gpu=all")

    assert found == ContainerDevices(
        env=(("ALL", "1"), ("GPU", "all"), ("EMPTY", "")),
        nodes=(DeviceNode("/dev/null", "/dev/gpu0", "rw"),),
        mounts=(DeviceMount("/usr/lib/gpu", "/usr/lib/gpu", is_read_only=True),),
        groups=(44,),
    )
    assert nodes_of([catalogue(GOOD).resolve("example.com/gpu=0")]) == ["/dev/null"]


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        ("hooks: [{hookName: createRuntime, path: /bin/x}]", "a createRuntime hook, /bin/x"),
        ("intelRdt: {closID: a}", "intelRdt"),
        ("netDevices: [{hostInterfaceName: eth1, name: eth0}]", "network device eth1"),
        ("mounts: [{hostPath: /a, containerPath: /b, options: [noexec]}]", "mount option 'noexec' at /b"),
        ("mounts: [{hostPath: /a, containerPath: /b, type: tmpfs}]", "a mount of type 'tmpfs' at /b"),
    ],
)
def test_what_cri_cannot_say_is_a_refusal_that_names_it(edit: str, complaint: str) -> None:
    """DVC-4."""
    text = GOOD.replace("{env: [GPU=all]}", f"{{{edit}}}")

    with pytest.raises(CannotMerge) as caught:
        merged("example.com/gpu=all", text=text)

    assert str(caught.value) == (
        f"CDI id example.com/gpu=all, file /cdi/0.yaml has {complaint}; a runtime that knows CDI is needed "
        "(containerd 2, CRI-O 1.28)"
    )


@pytest.mark.parametrize(
    ("there", "complaint"),
    [
        (None, "does not exist on this host"),
        (HostNode(type=""), "is no device of this host"),
        (HostNode(type="b", major=1, minor=3), "is of type b on this host; the edit says c"),
        (HostNode(type="c", major=9, minor=3), "has major 9 on this host; the edit says 1"),
        (HostNode(type="c", major=1, minor=5), "has minor 5 on this host; the edit says 3"),
    ],
)
def test_a_node_that_is_another_on_the_host_is_a_refusal(there: HostNode | None, complaint: str) -> None:
    """DVC-4."""
    with pytest.raises(CannotMerge, match=complaint):
        merged("example.com/gpu=0", host={"/dev/null": there})


@pytest.mark.parametrize(
    ("path", "options", "complaint"),
    [
        ("/", "[]", "mounts / of the host"),
        ("//./", "[]", "mounts / of the host"),
        ("/./proc//kcore", "[]", "mounts /proc/kcore of the host"),
        ("/proc/kcore", "[]", "mounts /proc/kcore of the host"),
        ("/sys/fs", "[rw]", "mounts /sys/fs of the host"),
        ("/var/lib/kepd/pods", "[]", "where /var/lib/kepd is"),
        ("/var/lib", "[]", "where /var/lib/kepd is"),
        ("/run/containerd/containerd.sock", "[]", "where /run/containerd/containerd.sock is"),
    ],
)
def test_places_that_no_container_may_see_are_not_mounted(path: str, options: str, complaint: str) -> None:
    """DVF-3."""
    edit = f"mounts: [{{hostPath: {path}, containerPath: /b, options: {options}}}]"
    private = ("/var/lib/kepd", "/run/kepd", "/run/containerd/containerd.sock")

    with pytest.raises(CannotMerge, match=complaint):
        merged("example.com/gpu=all", text=GOOD.replace("{env: [GPU=all]}", f"{{{edit}}}"), private=private)


def test_sys_may_be_mounted_to_be_read_and_propagation_is_kept() -> None:
    """DVC-3."""
    edits = "mounts: [{hostPath: /sys/class, containerPath: /b, options: [ro]}, {hostPath: /a, containerPath: /c,"
    text = GOOD.replace("{env: [GPU=all]}", f"{{{edits} options: [rbind, rslave]}}]}}")

    assert merged("example.com/gpu=all", text=text).mounts == (
        DeviceMount("/sys/class", "/b", is_read_only=True),
        DeviceMount("/a", "/c", propagation="slave"),
    )


def test_a_later_directory_hides_an_earlier_one_and_twice_in_one_is_unusable() -> None:
    """DVC-2."""
    first, later = CdiFile("/etc/cdi/a", 0, spec()), CdiFile("/run/cdi/a", 1, spec())
    again = CdiFile("/etc/cdi/b", 0, spec())

    assert Catalogue([first, later]).resolve("example.com/gpu=0").file.path == "/run/cdi/a"
    assert Catalogue([first, again, later]).resolve("example.com/gpu=0").file.path == "/run/cdi/a"
    with pytest.raises(NotResolved, match="stands in /etc/cdi/a and in /etc/cdi/b"):
        Catalogue([first, again]).resolve("example.com/gpu=0")
    with pytest.raises(NotResolved, match=r"CDI id example\.com/gpu=9 is in no file of /cdi"):
        catalogue(GOOD).resolve("example.com/gpu=9")


class TestDirectories:
    """Files on a disk."""

    def look(self, folder: Path) -> tuple[list[str], list[str]]:
        owner = folder.stat().st_uid
        directories = CdiDirectories([folder], folder, owner)
        return directories.look().every, [str(one) for one in directories.findings]

    def test_json_and_yaml_are_read_and_nothing_else(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text(GOOD)
        document = yaml.safe_load(GOOD.replace("example.com", "other.com"))
        (tmp_path / "b.json").write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2))
        for name in (".hidden.yaml", "c.txt"):
            (tmp_path / name).write_text("{")
        (tmp_path / "below.yaml").mkdir()
        ids, findings = self.look(tmp_path)

        assert ids == ["example.com/gpu=0", "example.com/gpu=all", "other.com/gpu=0", "other.com/gpu=all"]
        assert findings == [f"{tmp_path}/below.yaml: is no regular file"]

    def test_files_that_others_may_write_or_links_are_not_trusted(self, tmp_path: Path) -> None:
        """DVC-7."""
        (tmp_path / "real").write_text(GOOD)
        (tmp_path / "link.yaml").symlink_to("real")
        (tmp_path / "open.yaml").write_text(GOOD)
        (tmp_path / "open.yaml").chmod(0o666)
        ids, findings = self.look(tmp_path)

        assert ids == []
        assert findings == [
            f"{tmp_path}/link.yaml: is a link; expected a file of this directory",
            f"{tmp_path}/open.yaml: can be written by others than root; use chmod go-w",
        ]

    def test_files_of_another_owner_are_not_trusted(self, tmp_path: Path) -> None:
        """DVC-7."""
        (tmp_path / "a.yaml").write_text(GOOD)
        directories = CdiDirectories([tmp_path], tmp_path, tmp_path.stat().st_uid + 1)

        assert directories.look().every == []
        assert "expected root" in str(directories.findings[0])

    def test_what_is_written_is_there_whole_and_found(self, tmp_path: Path) -> None:
        """DVD-22."""
        place = tmp_path / "cdi"
        directories = CdiDirectories([place], place, tmp_path.stat().st_uid)
        asyncio.run(directories.write("kepd.yaml", GOOD.encode()))

        assert directories.look().every == ["example.com/gpu=0", "example.com/gpu=all"]
        assert asyncio.run(directories.names()) == ["kepd.yaml"]
        for _ in range(2):
            asyncio.run(directories.remove("kepd.yaml"))
        assert directories.look().every == []


def test_a_file_has_to_be_where_the_runtime_looks() -> None:
    """DVC-2: /var/run is /run; a runtime that tells nothing is believed to look everywhere."""
    (found,) = [Catalogue([CdiFile("/var/run/cdi/gpu.json", 0, spec())]).resolve("example.com/gpu=0")]
    check_seen([found], ())
    check_seen([found], ("/etc/cdi", "/run/cdi"))

    with pytest.raises(CannotMerge, match=r"looks into /etc/cdi alone; .* devices.cdi.merge: always"):
        check_seen([found], ("/etc/cdi",))


def test_an_id_of_two_files_is_listed_with_why_nobody_can_use_it() -> None:
    """DVC-8."""
    spec, findings = parse_spec("/c/a.json", b'{"cdiVersion": "0.6.0", "kind": "a.b/cc", "devices": [{"name": "x", '
                                b'"containerEdits": {"env": ["SECRET=word"]}}]}')  # fmt: skip
    assert spec is not None, findings
    one = cdi_listed(Catalogue([CdiFile("/c/a.json", 0, spec)]), "a.b/cc=x")
    twice = Catalogue([CdiFile("/c/a.json", 0, spec), CdiFile("/c/b.json", 0, spec)])

    assert (one.file, one.cdi_version, one.edits, one.refusal) == ("/c/a.json", "0.6.0", ("env SECRET",), "")
    assert [cdi_listed(twice, it).refusal for it in twice.every] == [
        "CDI id a.b/cc=x stands in /c/a.json and in /c/b.json; expected it once"
    ]
