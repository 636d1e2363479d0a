# SPDX-License-Identifier: Apache-2.0
"""Traces of the daemon: nothing of them without a collector, a refusal without what sends them, spans with both."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.config.document import Configuration
from agent.host.main import main
from agent.host.tracing import PACKAGES, has_extra, install_line, tracing_faults
from agent.model.exit_codes import BAD_CONFIGURATION
from tests.host.process import Kepd

PLAIN = Configuration()


def with_endpoint(endpoint: str) -> Configuration:
    tracing = replace(PLAIN.telemetry.tracing, endpoint=endpoint)
    return replace(PLAIN, telemetry=replace(PLAIN.telemetry, tracing=tracing))


def test_without_a_collector_nothing_of_it_is_imported(short_path: Path, free_port: int) -> None:
    """TRC-10."""
    with Kepd(short_path, free_port, PYTHONPROFILEIMPORTTIME="1") as kepd:
        kepd.start("--planes", "pods,images")
        kepd.wait(lambda: kepd.get("/livez")[0] == 200, "alive")
        assert "kepd_trace_spans" not in kepd.get("/metrics")[1]
        assert kepd.end() == 0
        imported = kepd.log.read_text()

    assert "agent.pods.run.runner" in imported
    assert "opentelemetry" not in imported


def test_with_a_collector_it_is_imported_and_counted(short_path: Path, free_port: int) -> None:
    """TRC-10, TRC-15: a collector that is not there keeps nothing from its work."""
    extra = "telemetry: {tracing: {endpoint: 'http://127.0.0.1:1', ratio: 1}}\n"
    with Kepd(short_path, free_port, extra=extra, PYTHONPROFILEIMPORTTIME="1") as kepd:
        kepd.start("--planes", "pods")
        kepd.wait(lambda: 'kepd_trace_spans_total{outcome="sent"} 0.0' in kepd.get("/metrics")[1], "figures")
        assert kepd.end() == 0
        imported = kepd.log.read_text()

    assert "opentelemetry.sdk.trace" in imported


def test_a_collector_without_the_extra_is_refused_with_the_line_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRC-10."""
    from importlib import metadata

    def missing(name: str) -> object:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    file = tmp_path / "config.yaml"
    file.write_text(
        "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\n"
        "telemetry: {tracing: {endpoint: 'http://127.0.0.1:4317'}}\n"
    )
    # As `kepd run` does it, which would change this process.
    result = CliRunner().invoke(main, ["config", "check", str(file)])

    assert result.exit_code == BAD_CONFIGURATION
    assert "telemetry.tracing.endpoint: http://127.0.0.1:4317" in result.output
    assert f"{sys.executable} -m pip install 'kepd[otel]'" in result.output


def test_the_extra_is_asked_for_only_where_a_collector_is_named() -> None:
    """TRC-10."""
    assert list(tracing_faults(with_endpoint(""), has=lambda: False)) == []
    assert len(list(tracing_faults(with_endpoint("http://h:1"), has=lambda: False))) == 1
    assert list(tracing_faults(with_endpoint("http://h:1"), has=lambda: True)) == []
    assert has_extra()


def test_where_there_is_no_pip_the_line_is_one_for_packages() -> None:
    """TRC-10."""
    assert install_line(has_pip=True) == install_line() == f"{sys.executable} -m pip install 'kepd[otel]'"
    assert install_line(has_pip=False).startswith("LOCK=otel scripts/package deb")


def test_the_extra_is_what_the_project_says() -> None:
    """TRC-10."""
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {one.partition(">")[0] for one in project["optional-dependencies"]["otel"]} == set(PACKAGES)


def test_the_locked_set_of_the_extra_is_that_of_an_installation_and_what_sends_traces() -> None:
    """TRC-10: a dependency that is new is in both."""
    locks = Path(__file__).parents[2] / "scripts/locks"
    plain, extra = (
        set(re.findall(r"(?m)^[\w-]+==\S+", (locks / f"{one}.lock").read_text())) for one in ("systemd", "otel")
    )
    assert plain < extra
    assert all(one.startswith("opentelemetry-") for one in extra - plain)


@pytest.mark.parametrize(
    "endpoint",
    [
        "127.0.0.1:4317",
        "http://host",
        "http://host:0",
        "http://host:70000",
        "ftp://h:1",
        "http://u:p@h:1",
        "http://h:1/x",
    ],
)
def test_an_endpoint_that_is_none_is_refused(tmp_path: Path, endpoint: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "apiVersion: config.kepd.dev/v1beta1\nkind: KepdConfiguration\n"
        f"telemetry: {{tracing: {{endpoint: '{endpoint}'}}}}\n"
    )
    result = CliRunner().invoke(main, ["config", "check", str(file)])

    assert result.exit_code != 0
    assert "such as http://127.0.0.1:4317" in result.output
