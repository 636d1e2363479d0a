# SPDX-License-Identifier: Apache-2.0
"""What is explained and described, as people read it."""
