# SPDX-License-Identifier: Apache-2.0
"""A small API server for drivers of devices: its sockets, its certificate, and a kubeconfig for each driver."""
