# SPDX-License-Identifier: Apache-2.0
"""Why, with the numbers that decided."""
