# SPDX-License-Identifier: Apache-2.0
"""The command: its options, the files it reads, whom it asks, and what it says meanwhile."""
