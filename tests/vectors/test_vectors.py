# SPDX-License-Identifier: Apache-2.0
"""Recorded cases: inputs with the answers that real Kubernetes code gave.

`pytest tests/vectors --vectors DIR` runs any directory. Files are known by name and each has an adapter beside this
file that turns a case into a call; a file that is absent runs nothing, a file with an unknown name is refused.
"""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

ADAPTERS = {
    "claim-allocation.json": "claim_allocation_adapter",
    "endpoint-selection.json": "endpoint_selection_adapter",
    "hints.json": "hints_adapter",
    "image-refs.json": "image_refs_adapter",
    "kube-proxy-rules.json": "kube_proxy_rules_adapter",
    "maglev.json": "maglev_adapter",
    "pod-termination.json": "pod_termination_adapter",
    "pull-queue.json": "pull_queue_adapter",
    "rehearsal.json": "rehearsal_adapter",
    "services-normalise.json": "services_normalise_adapter",
    "spread.json": "spread_adapter",
}


class Case(NamedTuple):
    """One recorded case, or the reason why its file has none that can run."""

    file: str
    id: str
    kind: str
    given: Any
    expect: Any
    problem: str = ""


def adapter(file: str) -> ModuleType | None:
    name = f"tests.vectors.{ADAPTERS[file]}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None


def cases_of(path: Path) -> Iterator[Case]:
    if path.name not in ADAPTERS:
        known = ", ".join(sorted(ADAPTERS))
        yield Case(
            path.name, "unknown-file", "", None, None, f"no vector file is called {path.name}; known are {known}"
        )
        return
    module = adapter(path.name)
    if module is None:
        yield Case(path.name, "no-adapter", "", None, None, f"nothing here answers {path.name} yet")
        return
    try:
        document = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        yield Case(path.name, "unreadable", "", None, None, f"{path} is not JSON: {error}")
        return
    if hasattr(module, "cases"):
        for case_id, kind, given, expect in module.cases(document):
            yield Case(path.name, case_id, kind, given, expect)
        return
    for case in document["cases"]:
        yield Case(path.name, case["id"], case.get("kind", ""), case["input"], case["expect"])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        folder: Path = metafunc.config.getoption("vectors")
        cases = [case for path in sorted(folder.glob("*.json")) for case in cases_of(path)]
        metafunc.parametrize("case", cases, ids=[f"{case.file.removesuffix('.json')}-{case.id}" for case in cases])


def test_vector(case: Case) -> None:
    assert case.problem == ""

    module = adapter(case.file)
    assert module is not None
    module.check(case.kind, case.given, case.expect)


def test_a_file_with_an_unknown_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hint.json").write_text("{}")

    (refused,) = cases_of(tmp_path / "hint.json")
    assert "no vector file is called hint.json" in refused.problem


def test_every_adapter_beside_this_file_is_known_and_has_its_cases() -> None:
    here = Path(__file__).parent
    adapters = {path.stem for path in here.glob("*_adapter.py")}

    assert adapters <= set(ADAPTERS.values())
    assert {file for file, name in ADAPTERS.items() if name in adapters} == {path.name for path in here.glob("*.json")}
