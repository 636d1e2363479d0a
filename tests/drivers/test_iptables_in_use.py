# SPDX-License-Identifier: Apache-2.0
"""Which legacy tables there are, as far as a process is told."""

from pathlib import Path

from agent.drivers.iptables.variant import legacy_names


class Forbidden(type(Path())):
    """As /proc/net/ip_tables_names is to all but root."""

    def read_text(self, *_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied", str(self))


def test_the_names_are_those_of_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "names").write_text("nat\nfilter\n")
    names = {"IPv4": tmp_path / "names", "IPv6": tmp_path / "missing"}

    assert legacy_names("IPv4", names).split() == ["nat", "filter"]
    assert legacy_names("IPv6", names) == ""


def test_a_daemon_without_root_goes_on_without_being_told() -> None:
    """SYS-13: it ended the services plane of kepd-services.service wherever legacy modules were loaded."""
    assert legacy_names("IPv4", {"IPv4": Forbidden("/proc/net/ip_tables_names")}) == ""
