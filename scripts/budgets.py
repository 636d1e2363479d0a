#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check the size budgets of pyproject.toml ([tool.kepd.budgets]) and the opening of every module.

Counts lines of files, of functions (docstring excluded), positional parameters, nesting, and words of docs/. A module
must open with the licence line and a docstring, and give each of its constants one value. Prints every excess, exits 1
if there is one, and prints the figures.
"""

import ast
import statistics
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from scripts.sources import ROOT, modules

LICENCE = "# SPDX-License-Identifier: Apache-2.0"
FORBIDDEN_NAMES = {"utils", "util", "common", "misc", "base", "manager", "handler", "helpers"}
NESTING = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[Function]:
    """Every function, methods and inner ones included."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def body_lines(function: Function) -> int:
    """Lines from the first statement after the docstring to the end."""
    body = function.body
    if ast.get_docstring(function) is not None and len(body) > 1:
        body = body[1:]
    return (function.end_lineno or 0) - body[0].lineno + 1


def depth(node: ast.AST) -> int:
    """How deep control structures lie in each other; `elif` is no deeper than `if`."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.Lambda | ast.ClassDef):
            continue
        chained = isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
        deepest = max(deepest, depth(child) + (isinstance(child, NESTING) and not chained))
    return deepest


def positional(function: Function) -> int:
    """Parameters that may be given by position, `self` and `cls` not counted."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return len([name for name in names if name not in ("self", "cls")])


def given_twice(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names of a module whose second value silently replaces the first, for readers above it too."""
    given: set[str] = set()
    for step in tree.body:
        places = (
            step.targets if isinstance(step, ast.Assign) else [step.target] if isinstance(step, ast.AnnAssign) else []
        )
        for place in places:
            if isinstance(place, ast.Name):
                if place.id in given:
                    yield place.id, step.lineno
                given.add(place.id)


def check(path: Path, text: str, budgets: dict[str, int]) -> Iterator[str]:
    """What is wrong with one file."""
    name = path.relative_to(ROOT)
    tree = ast.parse(text)
    if not text.startswith(LICENCE):
        yield f"{name}:1: must begin with {LICENCE}"
    if ast.get_docstring(tree) is None:
        yield f"{name}:1: has no module docstring"
    if FORBIDDEN_NAMES & {path.stem, *path.relative_to(ROOT).parts}:
        yield f"{name}: a name without a domain"
    for constant, line in given_twice(tree):
        yield f"{name}:{line}: {constant} has a value already"
    lines = len(text.splitlines())
    if lines > budgets["file_lines"]:
        yield f"{name}: {lines} lines, budget {budgets['file_lines']}"
    for function in functions(tree):
        where = f"{name}:{function.lineno}: {function.name}"
        if body_lines(function) > budgets["function_lines"]:
            yield f"{where}: {body_lines(function)} lines, budget {budgets['function_lines']}"
        if positional(function) > budgets["positional_parameters"]:
            yield f"{where}: {positional(function)} positional parameters, budget {budgets['positional_parameters']}"
        if depth(function) > budgets["nesting"]:
            yield f"{where}: nested {depth(function)} deep, budget {budgets['nesting']}"


def whole() -> dict[str, int]:
    """What there is to read, but for what is made from proto/, and the lists of rules."""
    python = [path for path in (ROOT / "agent").rglob("*.py") if "wire" not in path.parts]
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "rules" not in path.parts]
    return {
        "agent_lines": sum(len(path.read_text("utf-8").splitlines()) for path in python),
        "agent_modules": len(python),
        "tests_lines": sum(len(path.read_text("utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py")),
        "docs_words": sum(len(path.read_text("utf-8").split()) for path in pages),
    }


def main() -> int:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["kepd"]["budgets"]
    allowed: dict[str, str] = settings.pop("exceptions", {})
    most: dict[str, int] = settings.pop("whole")
    sums = whole()
    excesses = [f"{name}: {count}, budget {most[name]}" for name, count in sums.items() if count > most[name]]
    lengths: list[int] = []
    sizes: list[int] = []
    for path in modules():
        text = path.read_text("utf-8")
        found = check(path, text, settings)
        excesses += [line for line in found if not line.startswith(tuple(allowed))]
        lengths += [body_lines(function) for function in functions(ast.parse(text))]
        sizes.append(len(text.splitlines()))
    p90 = sorted(lengths)[int(len(lengths) * 0.9)]
    median = statistics.median(sizes)
    if p90 > settings["function_p90_lines"]:
        excesses.append(f"90 % of functions have up to {p90} lines, budget {settings['function_p90_lines']}")
    if median > settings["package_median_lines"]:
        excesses.append(f"the median file has {median:g} lines, budget {settings['package_median_lines']}")
    for line in excesses:
        print(line)
    functions_text = f"{len(lengths)} functions, 90 % up to {p90}, longest {max(lengths)}"
    print(f"{len(sizes)} files, median {median:g} lines; {functions_text}")
    print("; ".join(f"{name.replace('_', ' ')} {count}" for name, count in sums.items()))
    return 1 if excesses else 0


if __name__ == "__main__":
    sys.exit(main())
