# SPDX-License-Identifier: Apache-2.0
"""A node is cleaned as far as it can be."""

import pytest

from agent.host.upkeep import _each
from agent.model.exit_codes import FAILURE


async def test_what_cannot_be_cleaned_keeps_nothing_else_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    done = []

    async def away() -> None:
        raise OSError("no containerd at /run/x.sock")

    async def works() -> None:
        done.append("rules")

    code = await _each({"images": away, "Services": works})

    assert (code, done) == (FAILURE, ["rules"])
    assert "of images was not removed, or not all of it: no containerd at /run/x.sock" in capsys.readouterr().err


async def test_what_is_cleaned_whole_is_no_failure() -> None:
    async def works() -> None:
        """Nothing is left."""

    assert await _each({"names": works}) == 0
