# SPDX-License-Identifier: Apache-2.0
"""How sizes, rates and spans of time are written."""

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    value = float(count)
    for unit in UNITS:
        if value < 1024 or unit == UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return ""


def rate(bytes_per_second: float) -> str:
    return f"{size(bytes_per_second)}/s" if bytes_per_second > 0 else ""


def span(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole}s" if whole < 60 else f"{whole // 60}m{whole % 60:02d}s"
