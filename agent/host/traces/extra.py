# SPDX-License-Identifier: Apache-2.0
"""Whether this installation can send traces. Asked without importing any of it."""

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec

from agent.config.document import Configuration
from agent.model.finding import Finding

PACKAGES = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-grpc")
ENDPOINT = "telemetry.tracing.endpoint"


def has_extra() -> bool:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return all(distribution(name) for name in PACKAGES)
    except PackageNotFoundError:
        return False


def install_line(*, has_pip: bool | None = None) -> str:
    """Into the environment that this kepd runs in; that of Debian's package has no pip."""
    if has_pip if has_pip is not None else find_spec("pip") is not None:
        return f"{sys.executable} -m pip install 'kepd[otel]'"
    return "LOCK=otel scripts/package deb, in a clone of kepd, which makes a package that has it"


def tracing_faults(configuration: Configuration, has: Callable[[], bool] = has_extra) -> Iterator[Finding]:
    endpoint = configuration.telemetry.tracing.endpoint
    if endpoint and not has():
        text = (
            f"{endpoint}, but this kepd cannot send traces; expected the extra `otel` installed, by: {install_line()}"
        )
        yield Finding("", ENDPOINT, text)
