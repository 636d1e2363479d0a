#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generate `agent/wire/` from `proto/`: messages only, no service stubs.

Owns the one mapping from interface files to Python modules: `proto/a/b.proto` becomes `agent.wire.a.b_pb2`.
Never writes anything else. Called by the build hook and by `make proto`; two runs give the same bytes.
"""

import re
import shutil
import sys
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
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    status = protoc.main(["protoc", *include_paths(proto), f"--python_out={out}", f"--pyi_out={out}", *files])
    if status == 0:
        rewrite_imports(out, {name.partition("/")[0] for name in files})
    return int(status)


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
