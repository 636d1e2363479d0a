# SPDX-License-Identifier: Apache-2.0
"""Everything that makes a node what it is, in one file, and back from it."""
