# SPDX-License-Identifier: Apache-2.0
"""Flags of their own names into configuration keys. Values are checked with everything else."""

import json

from agent.config.sources import Flag

__all__ = ["telemetry_flags"]


def telemetry_flags(
    verbosity: int | None, vmodule: str | None, log_format: str | None, metrics_compat: str | None
) -> list[Flag]:
    flags: list[Flag] = []
    if verbosity is not None:
        flags.append(Flag("-v", "telemetry.verbosity", str(verbosity)))
    if log_format is not None:
        flags.append(Flag("--log-format", "telemetry.logFormat", log_format))
    if metrics_compat is not None:
        names = [word.strip() for word in metrics_compat.split(",") if word.strip()]
        flags.append(Flag("--metrics-compat", "telemetry.metricsCompat", json.dumps(names)))
    if vmodule is not None:
        pairs = dict(term.partition("=")[::2] for term in vmodule.split(",") if term.strip())
        levels = {plane.strip(): int(level) if level.isdecimal() else level for plane, level in pairs.items()}
        flags.append(Flag("--vmodule", "telemetry.vmodule", json.dumps(levels)))
    return flags
