# SPDX-License-Identifier: Apache-2.0
"""Of pods, what makes them and what they are given."""
