# SPDX-License-Identifier: Apache-2.0
"""Services while the API server is away: since when the plane is alone, and which endpoints are dead meanwhile."""
