# SPDX-License-Identifier: Apache-2.0
"""Rules of the pods of a namespace: their priority, their default resources, and what they may have together."""
