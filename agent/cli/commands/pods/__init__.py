# SPDX-License-Identifier: Apache-2.0
"""Commands for pods and their containers."""
