# SPDX-License-Identifier: Apache-2.0
"""The left half of the plane decides and nothing else; the right half is named here."""

import ast
from pathlib import Path

import pytest

import agent.images

FOLDER = Path(agent.images.__file__).parent
SHELL = {
    "__init__", "attempt", "child", "collector", "credentials", "desk", "ending", "history", "intake", "limiter",
    "metrics", "naming", "node_images", "ports", "prefetcher", "providers", "puller", "records", "relay", "sizes",
    "state", "watcher",
}  # fmt: skip
TREES = {path: ast.parse(path.read_text()) for path in sorted(FOLDER.glob("*.py"))}
PURE = [path for path in TREES if path.stem not in SHELL]
FORBIDDEN = {
    "aiohttp", "asyncio", "grpc", "logging", "os", "pathlib", "random", "secrets", "socket", "structlog",
    "subprocess", "time",
}  # fmt: skip


def imports(tree):
    for step in ast.walk(tree):
        if isinstance(step, ast.Import):
            yield from (alias.name for alias in step.names)
        elif isinstance(step, ast.ImportFrom):
            yield step.module


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.stem)
def test_a_pure_module_imports_nothing_that_waits_reads_or_draws(path):
    """STY-01, also through the shell: a pure module imports no module of the right half."""
    names = list(imports(TREES[path]))

    assert not {name.split(".")[0] for name in names} & FORBIDDEN
    assert not [name for name in names if name.startswith("agent.images.") and name.rpartition(".")[2] in SHELL]


@pytest.mark.parametrize("path", TREES, ids=lambda path: path.stem)
def test_a_module_says_what_it_owns_and_what_it_never_does(path):
    """STY-14."""
    text = path.read_text()
    docstring = ast.get_docstring(TREES[path])

    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    if path.stem not in ("__init__", "ports"):
        assert "Owns" in docstring
        assert "Never" in docstring
        assert 3 <= len(docstring.splitlines()) <= 12
