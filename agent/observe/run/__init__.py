# SPDX-License-Identifier: Apache-2.0
"""Reading the kernel, when somebody asks."""
