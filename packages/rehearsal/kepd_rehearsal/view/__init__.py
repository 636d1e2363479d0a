# SPDX-License-Identifier: Apache-2.0
"""A rehearsal in words, as tables and drawn."""
