# SPDX-License-Identifier: Apache-2.0
"""The rules of a node as a whole: which backend, what others left, what is there before and beside a sync."""
