# SPDX-License-Identifier: Apache-2.0
"""CL-3: a kepd whose drop-ins an earlier version read from `config.d` says at its start that it does not, and where
from it does."""

import json
from pathlib import Path
from typing import Any

from agent.model.exit_codes import BAD_CONFIGURATION
from tests.host.process import ITSELF, Kepd


def doctor(kepd: Kepd) -> list[Any]:
    kepd.wait(lambda: kepd.get("/livez")[0] == 200 and kepd.socket.exists(), "an answer")
    return list(json.loads(kepd.ctl("doctor", "-o", "json").stdout)["items"])


def test_a_kepd_names_the_drop_ins_that_it_does_not_read_any_more(short_path: Path, free_port: int) -> None:
    kepd = Kepd(short_path, free_port, prefix=ITSELF)
    kepd.config = kepd.config.rename(short_path / "services.yaml")
    (short_path / "config.d").mkdir()
    (short_path / "config.d" / "a.yaml").write_text("[")
    with kepd.start("--planes", "images"):
        found = doctor(kepd)
        told = kepd.log.read_text()
    (short_path / "services.d").mkdir()
    with kepd.start("--planes", "images"):
        found_later = doctor(kepd)

    assert told.count("configuration_of_former_version") == 1
    assert f"{short_path}/services.d" in told
    notes = [one for one in found if one["subject"] == "kepd configuration"]
    assert [(one["isNote"], f"{short_path}/services.d" in one["text"]) for one in notes] == [(True, True)]
    lacking = {one["subject"]: one["text"] for one in found if one.get("wanted") == "ready"}
    assert lacking["kepd runtime"] == f"configured by {kepd.config}", "which of several kepd lacks it"
    assert not [one for one in found_later if one["subject"] == "kepd configuration"]


def test_one_that_cannot_start_without_them_names_them_too(short_path: Path, free_port: int) -> None:
    kepd = Kepd(short_path, free_port, extra="pods: {relist: never}\n", prefix=ITSELF)
    kepd.config = kepd.config.rename(short_path / "cri.yaml")
    (short_path / "config.d").mkdir()
    (short_path / "config.d" / "a.yaml").write_text("[")
    with kepd.start():
        assert kepd.process is not None
        assert kepd.process.wait(60.0) == BAD_CONFIGURATION

    told = kepd.log.read_text()
    assert f"{short_path}/cri.d" in told
    assert "pods.relist" in told
