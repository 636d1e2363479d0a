# SPDX-License-Identifier: Apache-2.0
"""`kepctl ui`: the node live, over the whole terminal. `run/` alone touches the terminal, threads and the clock."""
