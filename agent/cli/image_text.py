# SPDX-License-Identifier: Apache-2.0
"""Images and pulls in words: sizes, rates, where a pull is and why it waits. Pure."""

from agent.wire.kepd.v1 import image_pb2

__all__ = ["rate", "size", "span", "stage_line"]

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    value = float(count)
    for unit in UNITS:
        if value < 1024 or unit == UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return ""


def rate(bytes_per_second: float) -> str:
    """Bytes a second; nothing while nothing moves."""
    return f"{size(bytes_per_second)}/s" if bytes_per_second > 0 else ""


def span(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole}s" if whole < 60 else f"{whole // 60}m{whole % 60:02d}s"


def stage_line(pull: image_pb2.Pull) -> str:
    if pull.stage == "queued":
        return f"waiting at {pull.position}: {pull.wait_text}" if pull.position else "waiting"
    if pull.stage == "unpacking" and pull.layers:
        return f"unpacking, {pull.layers_unpacked} of {len(pull.layers)} layers"
    if pull.stage == "failed":
        return f"failed: {pull.error}"
    return pull.stage
