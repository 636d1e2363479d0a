# SPDX-License-Identifier: Apache-2.0
"""KYAML is YAML that means the same to every reader."""

import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent.cli.kyaml import as_kyaml

SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="ascii"))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text("abNOyn-./ 1"), inner))


@given(value=VALUES)
def test_what_is_written_is_read_again(value: object) -> None:
    assert yaml.safe_load(as_kyaml(value)) == value


def test_a_manifest_has_braces_quotes_and_commas() -> None:
    made = {"kind": "Pod", "metadata": {"labels": {"app": "web", "no": "yes"}}, "args": ["a", 1], "env": [], "x": {}}

    assert as_kyaml(made).splitlines() == [
        "---", "{", '  kind: "Pod",', "  metadata: {", "    labels: {", '      app: "web",', '      "no": "yes",',
        "    },", "  },", "  args: [", '    "a",', "    1,", "  ],", "  env: [],", "  x: {},", "}",
    ]  # fmt: skip
