# SPDX-License-Identifier: Apache-2.0
"""What people see of pulls: progress, sentences, events."""
