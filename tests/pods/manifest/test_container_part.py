# SPDX-License-Identifier: Apache-2.0
"""Files of one's own for `kepctl debug`."""

import re

import pytest

from agent.model.refused import Refused
from agent.pods.manifest.container_part import read_container_part
from agent.pods.plan.ephemeral import PROFILES, _rights

BAD = [
    ("image: x", "custom:1: image: is given on the command line"),
    ("lifecycle: {}", "custom:1: lifecycle: an ephemeral container has no such thing"),
    ("envs: []", 'custom:1: envs: not supported by this version; did you mean "env"?'),
    ("env: 3", "custom:1: env: must be a list"),
    ("- a", "must be a map"),
    ("{", "not YAML"),
    ("", "0 documents"),
]


@pytest.mark.parametrize(("text", "told"), BAD)
def test_what_is_wrong_is_told_with_its_place(text: str, told: str) -> None:
    with pytest.raises(Refused, match=re.escape(told)):
        read_container_part(text.encode(), "custom")


def test_a_file_wins_over_its_profile_where_it_speaks() -> None:
    part = read_container_part(b'{"securityContext": {"runAsUser": 7}, "env": [{"name": "A", "value": "b"}]}', "custom")
    rights = _rights(PROFILES["restricted"], part.security_context)

    assert part.env[0].value == "b"
    assert rights is not None
    assert (rights.run_as_user, rights.run_as_non_root) == (7, True)
    assert _rights(PROFILES["baseline"], None) is None
