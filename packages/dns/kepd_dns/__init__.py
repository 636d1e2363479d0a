# SPDX-License-Identifier: Apache-2.0
"""Names on the node: a process that answers them, and the plane that looks after it."""
