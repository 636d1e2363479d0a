# SPDX-License-Identifier: Apache-2.0
import pytest

from agent.images.access.go_json import JsonInvalid, read_json


def test_a_text_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(JsonInvalid, match="exceeded max depth"):
        read_json(b"[" * 100_000)
