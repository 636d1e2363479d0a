# SPDX-License-Identifier: Apache-2.0
"""Services plane: Services and EndpointSlices into the kernel."""
