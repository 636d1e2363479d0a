# SPDX-License-Identifier: Apache-2.0
"""kepd: the node side of Kubernetes enhancements, as one daemon per node.

`host` joins the planes (`images`, `observe`, `pods`, `proxy`, `services`, `topology`, and those of `packages/`) with
the outside (`drivers`, `api`); `cli` is the client. docs/design.md says how the parts hang together.
"""

__version__ = "0.9.0"
