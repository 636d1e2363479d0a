# SPDX-License-Identifier: Apache-2.0
"""Build hook of hatchling: generates the protobuf modules so that `pip install .` of a clean clone works."""

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class StubsHook(BuildHookInterface[Any]):
    """Runs scripts/stubs.py before wheels and editable installs are put together."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Generate into the source tree; the `artifacts` setting takes the ignored files along."""
        if self.target_name == "sdist":
            return
        root = Path(self.root)
        spec = importlib.util.spec_from_file_location("kepd_stubs", root / "scripts" / "stubs.py")
        if spec is None or spec.loader is None:
            raise RuntimeError(f"{root}/scripts/stubs.py cannot be loaded; the source tree is incomplete")
        stubs = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(stubs)
        if stubs.generate(root / "proto", root / "agent" / "wire") != 0:
            raise RuntimeError("protoc refused a file below proto/; its message is above")
