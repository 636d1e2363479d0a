# SPDX-License-Identifier: Apache-2.0
"""kepd: the node side of Kubernetes enhancements, as one daemon per node.

`daemon` joins the planes (`images`, `pods`, `proxy`, `services`, `topology`) with the outside (`drivers`, `api`);
`cli` is the client. docs/design.md says how the parts hang together.
"""

__version__ = "0.1.0"
