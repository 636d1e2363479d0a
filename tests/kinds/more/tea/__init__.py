# SPDX-License-Identifier: Apache-2.0
"""A kind that nobody has, for tests: it is one file."""
