# SPDX-License-Identifier: Apache-2.0
"""Where two planes meet, one file for each meeting; nowhere else does code know two planes."""
