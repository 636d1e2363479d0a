# SPDX-License-Identifier: Apache-2.0
"""The local gRPC API and the HTTP endpoints: convert and delegate, nothing else."""
