# SPDX-License-Identifier: Apache-2.0
"""What the administrator of the machine sets, all in one file and at once: each start of kepd costs an emulated machine
half a minute of its processor."""

from tests.vm.machine import Machine

# The last by its name counts, and `kepd setup` writes some too.
PATH = "/etc/systemd/system/kepd.service.d/zz-administrator.conf"
LIMIT_MIB = 900
GUARD = "Environment=KEPD_SERVICES__BOOT_GUARD=true"
SETTINGS = (
    f"MemoryMax={LIMIT_MIB}M",
    "Environment=KEPD_TELEMETRY__VERBOSITY=4",
    """Environment='KEPD_SERVICES__FLOWTABLE__DEVICES=["guest0", "cni0"]'""",
)


def settle(machine: Machine, *lines: str) -> None:
    """These and no others, from the next start on."""
    machine.write(PATH, "\n".join(("[Service]", *lines, "")))
