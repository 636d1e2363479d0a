# SPDX-License-Identifier: Apache-2.0
"""Which endpoints serve a Service, and for whom."""
