# SPDX-License-Identifier: Apache-2.0
"""The units, read as a service manager would: what a node relies on when it boots."""

from collections import defaultdict
from pathlib import Path

import pytest

from agent.config.check import CheckedConfiguration
from agent.config.effective import enabled_planes
from agent.config.sources import Sources, check, drop_in_folder, host_facts, read
from agent.host.plane_checks import PLANE_CHECKS
from agent.proxy.attach.unit import ACTIVATED
from agent.proxy.run.plane import HOLDS_END_S

FOLDER = Path(__file__).resolve().parents[2] / "systemd"
Unit = dict[str, dict[str, list[str]]]
KUBELET_SCORE = -999
"""Of the kubelet's and containerd's processes."""


def unit(name: str) -> Unit:
    """Sections, keys, and all values of each."""
    found: Unit = defaultdict(lambda: defaultdict(list))
    section = ""
    for line in (FOLDER / name).read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, sign, value = line.partition("=")
            assert sign
            assert key == key.strip()
            found[section][key].append(value)
    return found


def unit_with_drop_in(name: str, *drop_ins: str) -> Unit:
    """As systemd reads them: drop-ins come after their unit, and of a switch the last word counts."""
    found = unit(name)
    for drop_in in drop_ins:
        for section, keys in unit(f"{name}.d/{drop_in}").items():
            for key, values in keys.items():
                found[section][key] = after(found[section][key] + values)
    return found


def after(values: list[str]) -> list[str]:
    """Without what an empty value takes back."""
    last = max((place for place, value in enumerate(values) if not value), default=-1)
    return values[last + 1 :]


def configuration() -> CheckedConfiguration:
    sources = Sources(file=FOLDER / "cri.yaml", environment={}, planes="proxy,images")
    return check(read(sources), host_facts({}), further=PLANE_CHECKS)


def test_the_proxy_stands_between_containerd_and_the_kubelet() -> None:
    """PRX-2: order, and nothing that would stop the kubelet with it."""
    service = unit("kepd-cri.service")
    dropin = unit("kubelet-kepd.conf")

    assert service["Unit"]["After"] == ["containerd.service"]
    assert service["Unit"]["Before"] == ["kubelet.service"]
    assert dropin["Unit"] == {"Wants": ["kepd-cri.service"], "After": ["kepd-cri.service"]}
    assert not {"Requires", "BindsTo", "PartOf"} & (service["Unit"].keys() | dropin["Unit"].keys())


def test_with_the_drop_in_for_pods_the_set_group_bit_may_be_set() -> None:
    """FP-5: an fsGroup needs it; without pods nothing does."""
    service = unit_with_drop_in("kepd.service", "pods.conf")["Service"]

    assert service["RestrictSUIDSGID"][-1] == "no"
    assert "CAP_FSETID" in " ".join(service["CapabilityBoundingSet"]).split()
    assert unit("kepd.service")["Service"]["RestrictSUIDSGID"] == ["yes"]
    others = [path.name for path in (FOLDER / "kepd.service.d").iterdir() if path.name != "pods.conf"]
    assert not any("RestrictSUIDSGID" in unit(f"kepd.service.d/{name}")["Service"] for name in others)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.service")), ids=lambda path: path.name)
def test_systemd_and_tmpfiles_agree_on_the_mode_of_the_configuration(path: Path) -> None:
    """FP-33: otherwise systemd warns at every start."""
    service = unit(path.name)["Service"]
    lines = [line.split() for line in (FOLDER / "tmpfiles.conf").read_text().splitlines()]
    modes = {words[1]: words[2] for words in lines if words and words[0] == "d"}

    for name in service.get("ConfigurationDirectory", []):
        assert service["ConfigurationDirectoryMode"] == [modes[f"/etc/{name}"]]


@pytest.mark.parametrize("name", ["config.yaml", "services.yaml", "cri.yaml"])
def test_each_file_and_its_drop_ins_can_be_read_by_group_kepd(name: str) -> None:
    """CL-3: kepd-services runs as user kepd, and whoever makes a folder is root."""
    lines = [line.split() for line in (FOLDER / "tmpfiles.conf").read_text().splitlines()]
    modes = {words[1]: words[2:5] for words in lines if words and words[0] == "z"}
    file = Path("/etc/kepd") / name
    drop_ins = drop_in_folder(file)

    assert modes[str(drop_ins)] == ["0750", "root", "kepd"]
    assert modes[f"{drop_ins}/*.yaml"] == modes[str(file)] == ["0640", "root", "kepd"]


@pytest.mark.parametrize(
    ("planes", "expected"),
    [("", {"services"}), ("pods", {"pods", "images", "services", "policies"})],
    ids=["as shipped", "as kepd setup has it"],
)
def test_a_node_and_the_proxy_beside_it_do_not_take_each_other_s_planes(
    tmp_path: Path, planes: str, expected: set[str]
) -> None:
    """CL-3: the images plane goes with pods or with the proxy, wherever these run."""
    file = tmp_path / "config.yaml"
    file.write_text((FOLDER / "config.yaml").read_text())
    if planes:
        (tmp_path / "config.d").mkdir()
        (tmp_path / "config.d" / "00-node.yaml").write_text(
            "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\npods: {enabled: true}\n"
        )
    checked = check(read(Sources(file=file, environment={})), host_facts({}), further=PLANE_CHECKS)
    beside = configuration().configuration

    assert checked.configuration is not None
    assert beside is not None
    assert set(enabled_planes(checked.configuration)) == expected
    assert set(enabled_planes(beside)) == {"proxy", "images"}


@pytest.mark.parametrize("name", ["kepd.service", "kepd-services.service", "kepd-cri.service"])
def test_a_kepd_that_grows_ends_before_what_its_node_stands_on(name: str) -> None:
    """FX-2: it is bounded by itself, ended before the kubelet and the runtime, and writes no memory to disk."""
    service = unit(name)["Service"]
    high, most = mebibytes(service["MemoryHigh"]), mebibytes(service["MemoryMax"])

    assert high <= 0.8 * most
    assert most <= 1280
    assert KUBELET_SCORE < int(service["OOMScoreAdjust"][0]) < 0
    assert service["LimitCORE"] == ["0"]
    assert {"TasksMax", "LimitNOFILE"} <= service.keys()


@pytest.mark.parametrize("names", [(), ("pods.conf",)])
def test_a_large_node_fits_with_room(names: tuple[str, ...]) -> None:
    """Of the measured 132 MiB for 10 000 Services, and with pods 0.4 MiB for each of 500 beside the 54 of the start."""
    service = unit_with_drop_in("kepd.service", *names)["Service"]
    needed = 132 + (500 * 0.4 if names else 0)

    assert mebibytes(service["MemoryHigh"][-1:]) > 2 * needed


def mebibytes(values: list[str]) -> int:
    (value,) = values
    return int(value[:-1]) * {"M": 1, "G": 1024}[value[-1]]


@pytest.mark.parametrize(
    ("key", "value"),
    [("Type", "notify"), ("Restart", "always"), ("RestartSec", "1"), ("RuntimeDirectoryPreserve", "yes")],
)
def test_the_proxy_is_always_there(key: str, value: str) -> None:
    """PRX-2, PRX-3."""
    assert unit("kepd-cri.service")["Service"][key] == [value]


def test_an_end_has_more_time_than_the_longest_hold() -> None:
    """PRX-51."""
    assert int(unit("kepd-cri.service")["Service"]["TimeoutStopSec"][0]) > HOLDS_END_S + 2 * 30
    assert int(unit("kepd-cri.service")["Service"]["OOMScoreAdjust"][0]) < -900


def test_the_command_and_its_configuration_run_proxy_and_images_alone() -> None:
    """PRX-4: in directories of their own."""
    (command,) = unit("kepd-cri.service")["Service"]["ExecStart"]
    checked = configuration()

    assert command.endswith("run --config /etc/kepd/cri.yaml --planes proxy,images")
    assert list(checked.findings) == []
    assert checked.configuration is not None
    assert checked.configuration.node.run_directory == "/run/kepd-cri"
    switches = {name: getattr(checked.configuration, name).enabled for name in ("images", "proxy", "pods", "services")}
    assert switches == {"images": True, "proxy": True, "pods": False, "services": False}


def test_the_socket_unit_listens_where_the_proxy_would() -> None:
    """PRX-3, PRX-7."""
    section = unit("kepd-cri.socket")["Socket"]

    assert section["ListenStream"] == ["/run/kepd-cri/cri/cri.sock"]
    assert section["FileDescriptorName"] == [ACTIVATED]
    assert (section["SocketMode"], section["DirectoryMode"]) == (["0660"], ["0700"])


def test_a_proxy_that_cannot_start_leads_the_kubelet_past_itself() -> None:
    """PRX-9: at the link that the configuration gives the kubelet, in one step."""
    bypass = unit("kepd-cri-bypass.service")["Service"]["ExecStart"]

    assert unit("kepd-cri.service")["Unit"]["OnFailure"] == ["kepd-cri-bypass.service"]
    assert bypass[-1].split()[-1] == "/run/kepd-cri/cri/kubelet.sock"
    assert bypass[-1].startswith("/bin/mv -T ")
    assert configuration().configuration.runtime.endpoint.endswith(bypass[0].split()[-2])  # type: ignore[union-attr]
