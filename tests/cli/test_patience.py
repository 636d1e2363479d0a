# SPDX-License-Identifier: Apache-2.0
"""NU-02: a wait says what is missing as it changes, again every ten seconds, and in the end."""

import pytest

from agent.cli.session import CommandFailed
from agent.cli.waits import patience
from agent.cli.waits.patience import Patience


def test_what_is_waited_for_is_said_when_it_changes_and_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(patience.time, "monotonic", lambda: now_s[0])
    one = Patience(60)
    for now_s[0], why in ((0.0, "pulls"), (1.0, "pulls"), (2.0, "waits 9 s"), (3.0, "waits 8 s"), (12.0, "waits 1 s")):
        one.check({"pod/a": why})

    assert capsys.readouterr().err.splitlines() == [
        "pod/a: pulls (0 s)", "pod/a: waits 9 s (2 s)", "pod/a: waits 1 s (12 s)",
    ]  # fmt: skip
    now_s[0] = 60.0
    with pytest.raises(CommandFailed, match=r"not in time, after 60 s: pod/a: no image; --timeout allows more") as told:
        one.check({"pod/a": "no image"})
    assert told.value.exit_code == 7
