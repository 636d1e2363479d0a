# SPDX-License-Identifier: Apache-2.0
"""Where the cluster of a rehearsal comes from: files, an API server, the node itself."""
