# SPDX-License-Identifier: Apache-2.0
"""What runs out on a node: who has it, who gives it up, and who waits."""
