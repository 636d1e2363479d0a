# SPDX-License-Identifier: Apache-2.0
"""Which pull runs next, and what its failure means."""
