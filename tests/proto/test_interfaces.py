# SPDX-License-Identifier: Apache-2.0
"""The interfaces: complete, stable on the wire, and tolerant of what is newer than they are."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from agent.drivers.cri import methods
from agent.wire.cri import runtime_v1_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("interfaces.txt")
FACTS = ROOT.parent / "shared" / "specs" / "proto-facts" / "check.py"


def stubs_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kepd_stubs", ROOT / "scripts" / "stubs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described() -> list[str]:
    """Every rpc, field and enum value of our interface files, one line each."""
    lines: list[str] = []
    for path in sorted((ROOT / "proto").rglob("*.proto")):
        name = str(path.relative_to(ROOT / "proto"))
        importlib.import_module("agent.wire." + name.removesuffix(".proto").replace("/", ".") + "_pb2")
        file = descriptor_pool.Default().FindFileByName(name)
        for service in file.services_by_name.values():
            for method in service.methods:
                streams = f"{'stream ' * method.client_streaming}-> {'stream ' * method.server_streaming}"
                lines.append(
                    f"{method.full_name} {method.input_type.full_name} {streams}{method.output_type.full_name}"
                )
        for enum in file.enum_types_by_name.values():
            lines += [f"{enum.full_name}.{value.name} {value.number}" for value in enum.values]
        for message in file.message_types_by_name.values():
            lines += described_message(message)
    return sorted(lines)


def described_message(message: Descriptor) -> Iterator[str]:
    for field in message.fields:
        kind = field.message_type or field.enum_type
        shape = "repeated " * field.is_repeated + (kind.full_name if kind else f"type{field.type}")
        yield f"{field.full_name} {field.number} {shape}"
    for enum in message.enum_types:
        yield from (f"{enum.full_name}.{value.name} {value.number}" for value in enum.values)
    for inner in message.nested_types:
        yield from described_message(inner)


def test_nothing_on_the_wire_has_changed_its_number_or_type() -> None:
    """API-08: lines may be added, never changed or removed. `python -m tests.proto.test_interfaces` adds new ones."""
    known = set(GOLDEN.read_text("utf-8").splitlines())
    now = set(described())

    assert sorted(known - now) == [], "removed or changed on the wire"
    assert sorted(now - known) == [], "new: run python -m tests.proto.test_interfaces"


@pytest.mark.skipif(not FACTS.exists(), reason="the field tables do not lie beside this checkout")
def test_the_files_agree_with_the_field_tables() -> None:
    done = subprocess.run(
        [sys.executable, str(FACTS), str(ROOT / "proto")], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors, 0 absent members" in done.stdout


def test_an_unknown_field_survives_decode_and_encode() -> None:
    """PRT-6: a newer kubelet's or runtime's fields pass through us."""
    newer = pb.ContainerConfig(log_path="main/0.log").SerializeToString() + bytes([0xFA, 0x3F, 3]) + b"new"
    message = pb.ContainerConfig.FromString(newer)
    message.log_path = "other"

    assert message.SerializeToString().endswith(bytes([0xFA, 0x3F, 3]) + b"new")
    assert pb.ContainerConfig.FromString(message.SerializeToString()).log_path == "other"


def test_environment_values_need_not_be_text() -> None:
    """PRT-4."""
    assert pb.KeyValue.DESCRIPTOR.fields_by_name["value"].type == FieldDescriptor.TYPE_BYTES


def test_two_generations_give_the_same_bytes(tmp_path: Path) -> None:
    """STY-58: and the same as what is installed."""
    stubs = stubs_script()
    for name in ("a", "b"):
        assert stubs.generate(ROOT / "proto", tmp_path / name) == 0

    def content(folder: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.py*") if path.suffix != ".pyc"
        }

    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert content(tmp_path / "a") == content(ROOT / "agent" / "wire")


def test_a_second_generation_touches_no_file(tmp_path: Path) -> None:
    """A package is built from the tree while programs run from it."""
    stubs = stubs_script()
    out = tmp_path / "wire"
    stubs.generate(ROOT / "proto", out)
    stale, changed = out / "gone_pb2.py", out / "__init__.py"
    before = {path: path.stat().st_ino for path in out.rglob("*.py*") if path != changed}
    stale.write_text("old")
    changed.write_text("edited by hand")

    assert stubs.generate(ROOT / "proto", out) == 0

    assert {path: path.stat().st_ino for path in out.rglob("*.py*") if path != changed} == before
    assert changed.read_text() == stubs.BANNER
    assert list(tmp_path.iterdir()) == [out]


def test_the_method_table_fits_the_descriptors() -> None:
    for method in methods.ALL:
        service, _, name = method.path.lstrip("/").rpartition("/")
        described_method = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
        assert method.request.DESCRIPTOR is described_method.input_type
        assert method.answer.DESCRIPTOR is described_method.output_type


def test_secrets_are_marked_so_that_they_can_be_left_out() -> None:
    """PRT-5."""
    fields = pb.AuthConfig.DESCRIPTOR.fields_by_name
    marked = [name for name, field in fields.items() if field.GetOptions().debug_redact]

    assert sorted(marked) == ["auth", "identity_token", "password", "registry_token"]


if __name__ == "__main__":
    kept = set(GOLDEN.read_text("utf-8").splitlines())
    GOLDEN.write_text("\n".join(sorted(kept | set(described()))) + "\n", "utf-8")
