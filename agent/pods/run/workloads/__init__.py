# SPDX-License-Identifier: Apache-2.0
"""Making and ending the pods of workloads, and what budgets say of their ends."""
