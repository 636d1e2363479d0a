# SPDX-License-Identifier: Apache-2.0
"""Rules of pods, most of them of a namespace."""
