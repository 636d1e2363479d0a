# SPDX-License-Identifier: Apache-2.0
"""Families of a kubelet 1.36.2, as its page was recorded, and where kepd's pages differ from it, each with the reason.

docs/observation.md has the same list for people; a test holds both together.
"""

NEVER_FILLED = "a kubelet never fills it"
WALKS = "counting it walks /proc of every process, which telemetry.containers.descriptors asks for"
HARDWARE = "a fact of the hardware that no pod changes"

LEFT_OUT = {
    "cadvisor_version_info": "there is no cAdvisor; kepd_build_info is on /metrics",
    "container_cpu_load_average_10s": NEVER_FILLED,
    "container_cpu_load_d_average_10s": NEVER_FILLED,
    "container_tasks_state": NEVER_FILLED,
    "container_health_state": NEVER_FILLED,
    "container_file_descriptors": WALKS,
    "container_sockets": WALKS,
    "container_ulimits_soft": WALKS,
    "machine_cpu_books": HARDWARE,
    "machine_cpu_drawers": HARDWARE,
    "machine_cpu_physical_cores": HARDWARE,
    "machine_cpu_sockets": HARDWARE,
    "machine_nvm_avg_power_budget_watts": HARDWARE,
    "machine_nvm_capacity": HARDWARE,
    "machine_scrape_error": "container_scrape_error says it for all that is read",
}
NO_DISK = "a kubelet shows it where its runtime tells the disk, or its cAdvisor does"
OURS_ALONE = {
    **dict.fromkeys(
        (f"container_fs_{one}" for one in (
            "usage_bytes", "limit_bytes", "inodes_total", "inodes_free", "reads", "writes", "reads_bytes",
            "writes_bytes",
        )), NO_DISK,
    ),
    **dict.fromkeys(
        (f"container_pressure_{what}_{word}_seconds" for what in ("cpu", "memory", "io") for word in
         ("waiting", "stalled")), "a kubelet has none with version 1 of control groups",
    ),
    "scrape_error": "resource_scrape_error under the name that kubelets had before",
    "kepd_container_restarts": "restarts by container, which a kubelet has in the API alone",
    "kepd_container_oom_kills": "counts over restarts of the container and of kepd",
}  # fmt: skip

# As recorded: name and type. The parser takes the ending of counters off.
CADVISOR = """
container_cpu_cfs_burst_periods counter
container_cpu_cfs_burst_seconds counter
container_cpu_cfs_periods counter
container_cpu_cfs_throttled_periods counter
container_cpu_cfs_throttled_seconds counter
container_cpu_system_seconds counter
container_cpu_usage_seconds counter
container_cpu_user_seconds counter
container_last_seen gauge
container_memory_cache gauge
container_memory_failcnt counter
container_memory_failures counter
container_memory_kernel_usage gauge
container_memory_mapped_file gauge
container_memory_max_usage_bytes gauge
container_memory_rss gauge
container_memory_swap gauge
container_memory_total_active_file_bytes gauge
container_memory_total_inactive_file_bytes gauge
container_memory_usage_bytes gauge
container_memory_working_set_bytes gauge
container_network_receive_bytes counter
container_network_receive_errors counter
container_network_receive_packets_dropped counter
container_network_receive_packets counter
container_network_transmit_bytes counter
container_network_transmit_errors counter
container_network_transmit_packets_dropped counter
container_network_transmit_packets counter
container_oom_events counter
container_processes gauge
container_scrape_error gauge
container_spec_cpu_period gauge
container_spec_cpu_quota gauge
container_spec_cpu_shares gauge
container_spec_memory_limit_bytes gauge
container_spec_memory_reservation_limit_bytes gauge
container_spec_memory_swap_limit_bytes gauge
container_start_time_seconds gauge
container_threads gauge
container_threads_max gauge
machine_cpu_cores gauge
machine_memory_bytes gauge
machine_swap_bytes gauge
"""
