# SPDX-License-Identifier: Apache-2.0
"""What Services have of an API server: their source, events and a taint there, and what is kept for its absence."""
