# SPDX-License-Identifier: Apache-2.0
"""Claims, classes and slices as people and drivers write them, and what is wrong with them."""
