#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generate `agent/wire/` from `proto/`: messages only, no service stubs.

Owns the one mapping from interface files to Python modules: `proto/a/b.proto` becomes `agent.wire.a.b_pb2`.
Never writes anything else. Called by the build hook and by `make proto`; two runs give the same bytes, and the second
touches no file: a program that runs from the tree while a package is built finds every module at any moment.
"""

import re
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
BANNER = '"""Generated from proto/ by scripts/stubs.py; not kept in git."""\n'


def include_paths(proto: Path) -> list[str]:
    """The search path of protoc: our files, protobuf's own, and google.rpc."""
    import google.rpc

    common = [str(Path(entry).parent.parent) for entry in google.rpc.__path__]
    return [f"-I{path}" for path in (str(proto), str(Path(grpc_tools.__file__).parent / "_proto"), *common)]


def generate(proto: Path, out: Path) -> int:
    """Fill `out` with the modules of every file below `proto`; returns protoc's exit status."""
    files = sorted(str(path.relative_to(proto)) for path in proto.rglob("*.proto"))
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
        made = Path(folder)
        status = protoc.main(["protoc", *include_paths(proto), f"--python_out={made}", f"--pyi_out={made}", *files])
        if status == 0:
            rewrite_imports(made, {name.partition("/")[0] for name in files})
            take_over(made, out)
    return int(status)


def take_over(made: Path, out: Path) -> None:
    """Rename into `out` what differs, and remove from it what is no longer made."""
    fresh = {path.relative_to(made): path for path in made.rglob("*.py*")}
    for name, path in sorted(fresh.items()):
        place = out / name
        if not place.is_file() or place.read_bytes() != path.read_bytes():
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
    for place in [path for path in out.rglob("*.py*") if path.suffix != ".pyc"]:
        if place.relative_to(out) not in fresh:
            place.unlink()


def rewrite_imports(out: Path, packages: set[str]) -> None:
    """protoc writes absolute imports from its own root; ours is `agent.wire`."""
    names = "|".join(sorted(packages))
    pattern = re.compile(rf"^(from|import) ((?:{names})(?:\.|\b))", re.MULTILINE)
    for path in sorted(out.rglob("*.py*")):
        path.write_text(pattern.sub(r"\1 agent.wire.\2", path.read_text("utf-8")), "utf-8")
    for folder in sorted({out, *(path.parent for path in out.rglob("*.py"))}):
        for inner in (folder, *folder.parents):
            if inner.is_relative_to(out):
                (inner / "__init__.py").write_text(BANNER, "utf-8")


if __name__ == "__main__":
    sys.exit(generate(ROOT / "proto", Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "agent" / "wire"))
