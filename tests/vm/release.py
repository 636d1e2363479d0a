# SPDX-License-Identifier: Apache-2.0
"""The releases of Debian that machines are made of. KEPD_VM_RELEASE names one; without it, Debian 12."""

import hashlib
import os
from dataclasses import dataclass, replace

from tests.vm.architecture import ARCHITECTURES, Architecture
from tests.vm.architecture import chosen as chosen_architecture

# systemd with everything it shows a user, a kernel, what a node of pods needs, and a way in.
PACKAGES = (
    "systemd", "systemd-sysv", "udev", "dbus", "linux-image-cloud-amd64", "containerd", "runc",
    "containernetworking-plugins", "nftables", "iptables", "conntrack", "python3", "python3-venv", "python3-iptables",
    "ca-certificates", "iproute2", "procps", "kmod", "apparmor", "openssh-server", "netbase", "curl", "gpg", "rsync",
    "make", "busybox-static", "sudo",
)  # fmt: skip
# What scripts/prepare would install: where no program runs by itself, the tests run in the machine.
TOOLS = (
    "docker-registry", "shellcheck", "buildah", "tmux", "mmdebstrap", "ruby", "lintian", "prometheus", "musl-tools",
    "kubernetes-client", "age", "systemd-journal-remote", "git", "e2fsprogs",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """`options` are for mmdebstrap."""

    number: str
    suite: str
    packages: tuple[str, ...] = PACKAGES
    options: tuple[str, ...] = ()
    architecture: Architecture = ARCHITECTURES["amd64"]

    @property
    def key(self) -> str:
        """Another list of packages is another system."""
        listed = " ".join((self.suite, *self.packages, *self.options))
        return f"{self.suite}-{hashlib.sha256(listed.encode()).hexdigest()[:12]}"


RELEASES = {
    one.number: one
    for one in (
        Release(number="12", suite="bookworm"),
        Release(number="13", suite="trixie"),
        # Not released: its list of packages is made anew all the time, and counts as old where a clock is ahead.
        Release(
            number="forky",
            suite="forky",
            packages=(*PACKAGES, "criu"),
            options=('--aptopt=Acquire::Check-Valid-Until "false"',),
        ),
    )
}


def for_processor(release: Release, architecture: Architecture) -> Release:
    if architecture is release.architecture:
        return release
    packages = (one.replace("-amd64", f"-{architecture.name}") for one in release.packages)
    options = (*release.options, f"--architectures={architecture.name}")
    return replace(release, packages=(*packages, *TOOLS), options=options, architecture=architecture)


def chosen() -> Release:
    number = os.environ.get("KEPD_VM_RELEASE", "12")
    if number not in RELEASES:
        raise SystemExit(f"KEPD_VM_RELEASE is {number!r}; expected: one of {', '.join(RELEASES)}")
    return for_processor(RELEASES[number], chosen_architecture())
