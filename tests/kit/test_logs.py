# SPDX-License-Identifier: Apache-2.0
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from agent.kit.logs import Levels, configure_logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_one_event_per_line_with_time_level_and_plane() -> None:
    """LOG-01."""
    out = io.StringIO()
    configure_logs(Levels(), "json", lambda: 0.0, out)
    structlog.get_logger(plane="images").info("image_pull_finished", image="a\nb", size_bytes=3)
    (line,) = lines(out)

    assert list(line)[:3] == ["time", "level", "plane"]
    assert str(line["time"])[-5] == "." or str(line["time"]).endswith("Z")
    assert line["event"] == "image_pull_finished"
    assert line["size_bytes"] == 3


def test_levels_follow_klog_and_change_at_run_time() -> None:
    """LOG-02."""
    out, levels = io.StringIO(), Levels(2)
    configure_logs(levels, "json", lambda: 0.0, out)
    pods, services = structlog.get_logger(plane="pods"), structlog.get_logger(plane="services")
    pods.info("plan_made", v=4)
    levels.planes = {"pods": 4}
    pods.info("plan_made", v=4)
    services.info("plan_made", v=4)
    levels.verbosity = 0
    services.info("sync_finished")
    services.warning("sync_failed")

    assert [(line["plane"], line["event"]) for line in lines(out)] == [
        ("pods", "plan_made"),
        ("services", "sync_failed"),
    ]
    assert "v" not in lines(out)[0]


def test_a_failure_that_repeats_is_shown_in_doubling_steps() -> None:
    """LOG-03."""
    out, now_s = io.StringIO(), 0.0
    configure_logs(Levels(), "json", lambda: now_s, out)
    log = structlog.get_logger(plane="pods")
    for number in range(20):
        log.warning("pod_step_failed", error="x", took_s=float(number))
    log.warning("pod_step_failed", error="y")

    assert [line.get("repeated") for line in lines(out)] == [None, 2, 4, 8, 16, None]

    now_s = 10_000.0
    log.warning("pod_step_failed", error="x", took_s=1.0)
    assert "repeated" not in lines(out)[-1]


@pytest.mark.parametrize("log_format", ["logfmt", "console", "json"])
def test_every_format_writes_one_line_per_event(log_format: str) -> None:
    out = io.StringIO()
    configure_logs(Levels(), log_format, lambda: 0.0, out)
    structlog.get_logger(plane="pods").info("pod_started", pod="a b", note='"x"')

    assert len(out.getvalue().splitlines()) == 1
    assert "pod_started" in out.getvalue()


@pytest.mark.parametrize("log_format", ["logfmt", "console", "json"])
def test_lines_in_the_journal_have_levels_that_it_can_be_asked_for(
    log_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOG-04."""
    with (tmp_path / "journal").open("w+") as out:
        stream = os.fstat(out.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{stream.st_dev}:{stream.st_ino}")
        configure_logs(Levels(4), log_format, lambda: 0.0, out)
        log = structlog.get_logger(plane="pods")
        for method in ("debug", "info", "warning", "error"):
            getattr(log, method)("plan_made", note="a\nb")
        out.seek(0)
        written = out.read().splitlines()

    assert [line[:3] for line in written] == ["<7>", "<6>", "<4>", "<3>"]


def test_lines_elsewhere_have_no_level_of_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-04: under systemd too, where a unit appends to a file."""
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    with (tmp_path / "log").open("w+") as out:
        configure_logs(Levels(), "json", lambda: 0.0, out)
        structlog.get_logger(plane="pods").warning("plan_made")
        out.seek(0)
        written = out.read()

    assert written.startswith("{")


@pytest.mark.parametrize("log_format", ["json", "logfmt", "console"])
def test_no_text_from_outside_reaches_a_terminal_unprintable(log_format: str) -> None:
    """Callers choose the names of their programs, and a runtime its words."""
    out = io.StringIO()
    configure_logs(Levels(), log_format, lambda: 0.0, out)
    try:
        raise ValueError("\x1b[2J\x9bgone")
    except ValueError as error:
        structlog.get_logger(plane="api").error(
            "call_failed", comm="a\x1b[31mred\r\nlevel=info", error=error, names=["\x1b]0;x"], exc_info=error
        )

    assert not [sign for sign in out.getvalue() if not sign.isprintable() and sign != "\n"]
    assert out.getvalue().count("level=info") == 1
