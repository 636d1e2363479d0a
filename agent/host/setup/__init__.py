# SPDX-License-Identifier: Apache-2.0
"""`kepd setup`: a bare node made ready. `look` gathers facts, `plan` decides, `node_files` writes, `command` asks."""
