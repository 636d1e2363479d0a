# SPDX-License-Identifier: Apache-2.0
"""One pod, from its first sandbox to its last file: its keeper and the keeper's parts."""
