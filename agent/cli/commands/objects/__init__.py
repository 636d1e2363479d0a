# SPDX-License-Identifier: Apache-2.0
"""Commands for objects of every kind."""
