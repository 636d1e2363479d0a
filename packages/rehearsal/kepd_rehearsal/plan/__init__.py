# SPDX-License-Identifier: Apache-2.0
"""A cluster, changes of it, and what becomes of its pods and Services: pure, values in and values out."""
