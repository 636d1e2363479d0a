# SPDX-License-Identifier: Apache-2.0
"""Topology decides and nothing else: what its modules may import and what they must say about themselves."""

import ast
from pathlib import Path

import pytest

import agent.topology

FOLDER = Path(agent.topology.__file__).parent
MODULES = sorted(FOLDER.glob("*.py"))
ALLOWED = {"agent", "collections", "math", "msgspec", "typing"}


def imports(tree):
    for step in ast.walk(tree):
        if isinstance(step, ast.Import):
            yield from (alias.name for alias in step.names)
        elif isinstance(step, ast.ImportFrom):
            yield step.module


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_imports_nothing_that_waits_reads_or_draws(path):
    """STY-01: neither asyncio nor os, time, random, json or logging."""
    names = list(imports(ast.parse(path.read_text())))

    assert {name.split(".")[0] for name in names} <= ALLOWED
    assert all(name.startswith(("agent.topology", "agent.model")) for name in names if name.startswith("agent"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_says_what_it_owns_and_what_it_never_does(path):
    """STY-14."""
    text = path.read_text()
    docstring = ast.get_docstring(ast.parse(text))

    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert "Never" in docstring
    assert 3 <= len(docstring.splitlines()) <= 10
