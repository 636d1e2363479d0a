# SPDX-License-Identifier: Apache-2.0
"""The state of a pod is changed by its keeper and the keeper's parts alone; everyone else asks the keeper."""

import ast
from pathlib import Path

import pytest

from agent.pods.run.one_pod.run_state import LivePod

ROOM = Path(__file__).resolve().parents[3] / "agent/pods/run"
PARTS = {
    "keeper",
    "starting",
    "created_ahead",
    "sandbox_maker",
    "pod_images",
    "container_setup",
    "stopping",
    "probing",
    "resizing",
    "removing_dead",
    "observer",
    "run_state",
}
# What others may call: it changes nothing that a planner looks at.
HARMLESS = {"tell", "note", "look", "last_line", "is_running", "container_of", "kind_of"}
CHANGES = {
    name for name, one in vars(LivePod).items() if callable(one) and not name.startswith("_") and name not in HARMLESS
}
STRANGERS = sorted(path.stem for path in ROOM.glob("*.py") if path.stem not in {*PARTS, "__init__"})


def is_run(node: ast.expr) -> bool:
    """`run`, `keeper.run`, and what hangs below them."""
    if isinstance(node, ast.Name):
        return node.id == "run"
    return isinstance(node, ast.Attribute) and (node.attr in {"run", "_run"} or is_run(node.value))


def changes(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [ast.unparse(one) for one in targets if isinstance(one, ast.Attribute) and is_run(one.value)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_run(node.func.value):
            found += [ast.unparse(node.func)] if node.func.attr in CHANGES else []
    return found


@pytest.mark.parametrize("name", STRANGERS)
def test_who_is_no_part_of_the_keeper_changes_nothing_of_a_pod(name: str) -> None:
    """The commands for people and the runner wrote to it beside the keeper."""
    assert changes((ROOM / f"{name}.py").read_text()) == []


def test_a_change_from_outside_is_found() -> None:
    source = "run = keeper.run\nrun.problem = ''\nkeeper.run.memory = 1\nrun.remember('a', f)\nrun.tell('A', 'b')"

    assert changes(source) == ["run.problem", "keeper.run.memory", "run.remember"]
