//! The only list of metrics. `docs/metrics.md` is generated from it, and a test checks that nodelb(8) names each one.
//!
//! A name follows OpenMetrics: it ends in the unit, and for a counter in `_total`. The number of label values is
//! bounded, and the row states the bound. Some metrics have the names that kube-proxy uses, for existing dashboards.

use super::family::{Described, Group, Kind, Label, Metric};

/// Defines each metric as a static, and the table of all metrics in this order.
macro_rules! metrics {
    ($($id:ident$(<$labels:literal>)?: $group:ident, $kind:ident, $name:literal, [$($label:ident = $values:literal),*], $help:literal;)*) => {
        $(#[doc = concat!("`", $name, "`: ", $help, ".")]
        pub(in crate::admin) static $id: Metric$(<$labels>)? = Metric {
            group: Group::$group,
            name: $name,
            kind: Kind::$kind,
            labels: [$(Label { name: stringify!($label), values: $values }),*],
            help: $help,
        };)*

        /// Every metric, by group.
        pub static METRICS: &[Described] = &[$($id.described()),*];
    };
}

metrics! {
    SERVICES: Services, Gauge, "nodelb_services", [], "Number of services by source";
    SERVICES_HELD: Services, Gauge, "nodelb_services_held", [],
        "Services that lead to an apiserver and keep their last backends although their source removed all of them";
    SERVICES_WITHOUT_BACKENDS: Services, Gauge, "nodelb_services_without_backends", [],
        "Services with at least one port without a usable backend";
    SERVICES_AWAITING: Services, Gauge, "nodelb_services_awaiting_load_balancer", [],
        "Services of type LoadBalancer without an ingress address";
    FRONTENDS<1>: Services, Gauge, "nodelb_frontends", [status = "Pending, Done, Held, Error"],
        "Service addresses by status";
    FRONTENDS_REFUSED: Services, Gauge, "nodelb_frontends_refused", [],
        "Service addresses that nodelb refuses to serve";
    FRONTENDS_OUTRANKED: Services, Gauge, "nodelb_frontends_outranked", [],
        "Claims to an address that another service, or another port of the same service, owns";
    BACKENDS<1>: Services, Gauge, "nodelb_backends",
        [state = "Active, Terminating, Quarantined, Maintenance, NotReady"],
        "Backends per service port by state, as reported by the source or by the health checks of nodelb";
    BACKENDS_SELECTABLE: Services, Gauge, "nodelb_backends_selectable", [],
        "Usable backends per service port";
    LOCAL_ENTRY_PORTS: Services, Gauge, "nodelb_local_entry_ports", [],
        "Services with a healthCheckNodePort";
    LOCAL_ENTRY_PORTS_FAILED: Services, Gauge, "nodelb_local_entry_ports_failed", [],
        "Services whose healthCheckNodePort cannot be opened on at least one address";
    NODEPORTS_BOUND: Services, Gauge, "nodelb_nodeports_bound", [],
        "NodePorts that a process on the node has bound: connections from outside reach that process, not the service";
    NODE_ADDRESSES_UNANSWERED: Services, Gauge, "nodelb_node_addresses_unanswered", [],
        "Addresses of the node on which NodePorts do not work because writing them to the kernel failed";
    SERVICE_CONNECTIONS<4>: Services, Counter, "nodelb_service_connections_total",
        [service = "the first 1,000 service ports with connections, and `other` for the rest", port = "of the \
             service", protocol = "TCP, UDP", result = "translated, refused"],
        "Connections of processes on this node: TCP connects, UDP sockets each time they get a backend, and refused \
         UDP datagrams";

    EVENT_TO_KERNEL: Changes, Histogram, "nodelb_event_to_kernel_duration_seconds", [],
        "Time from receiving a change of a service port to its write to the kernel, including retries";
    RECONCILE: Changes, Histogram, "nodelb_reconcile_duration_seconds", [],
        "Duration of reconcile rounds";
    RECONCILES: Changes, Counter, "nodelb_reconciles_total", [], "Number of reconcile rounds";
    RECONCILE_OPERATIONS<1>: Changes, Counter, "nodelb_reconcile_operations_total", [result = "done, failed"],
        "Operations on the kernel maps by result";
    RECONCILE_RETRIES: Changes, Counter, "nodelb_reconcile_retries_total", [],
        "Reconcile rounds triggered by a retry";
    NETWORK_PROGRAMMING: Changes, Histogram, "kubeproxy_network_programming_duration_seconds", [],
        "Time from a change of a pod or service, as recorded in its EndpointSlice, to its write to the kernel; same \
         name as in kube-proxy";
    SYNC_PROXY_RULES: Changes, Histogram, "kubeproxy_sync_proxy_rules_duration_seconds", [],
        "Same as `nodelb_reconcile_duration_seconds`, with the name and the buckets of kube-proxy";

    MAP_ENTRIES<1>: Kernel, Gauge, "nodelb_map_entries", [map = "frontends, services, slots, affinity"],
        "Entries in use per kernel map; for slots, including those that wait for reuse";
    MAP_LIMIT<1>: Kernel, Gauge, "nodelb_map_limit", [map = "frontends, services, slots, affinity"],
        "Capacity of each kernel map in entries";
    HOOKS_IN_EFFECT: Kernel, Gauge, "nodelb_hooks_in_effect", [],
        "1 if every program is attached and the self-test passes, otherwise 0: connections are not translated";
    DRIFT_REPAIRED<1>: Kernel, Counter, "nodelb_drift_repaired_total", [kind = "frontend, service, slots, node_address, link"],
        "Map entries and links repaired after another process changed them";
    DRIFT_CHECKS: Kernel, Counter, "nodelb_drift_checks_total", [],
        "Number of comparisons of the maps with their expected content";
    DRIFT_LAST_CHECK_AGE: Kernel, Gauge, "nodelb_drift_last_check_age_seconds", [],
        "Time since the last comparison of the maps; absent before the first";

    SOURCE_SYNCED<1>: Sources, Gauge, "nodelb_source_synced", [source = "files, kubernetes"],
        "1 if the initial sync of the source is complete, otherwise 0: until then nothing is removed";
    SOURCE_PLACES<2>: Sources, Gauge, "nodelb_source_places", [source = "files, kubernetes", state = "Ok, LastGood, Error"],
        "Files and object kinds that services are read from, by state";
    SOURCE_PROBLEMS<1>: Sources, Gauge, "nodelb_source_problems", [source = "files, kubernetes"],
        "Number of problems, as shown by `nodelb sources`";
    SOURCE_UP<2>: Sources, Gauge, "nodelb_source_up",
        [source = "files, kubernetes", kind = "directory, services, endpointslices, nodes"],
        "1 if the directory is readable or the watch is up to date, otherwise 0";
    SOURCE_AGE<2>: Sources, Gauge, "nodelb_source_age_seconds",
        [source = "files, kubernetes", kind = "directory, services, endpointslices, nodes"],
        "Time since the last read of the directory, or the last event of the kind, including bookmarks; absent before \
         the first";

    APISERVERS<1>: Apiservers, Gauge, "nodelb_apiservers",
        [state = "Untried, Healthy, Recovering, NotReady, Failed, Refused"],
        "Known apiserver addresses by status";
    APISERVER_CONNECTED: Apiservers, Gauge, "nodelb_apiserver_connected", [], "1 if an apiserver is in use, otherwise \
         0";
    APISERVER_LAST_RESPONSE: Apiservers, Gauge, "nodelb_apiserver_last_response_seconds", [],
        "Time since the last data from an apiserver, which is the maximum age of the services; absent before the first";
    APISERVER_SWITCHES: Apiservers, Counter, "nodelb_apiserver_switches_total", [],
        "Number of switches to another apiserver";

    HEALTH_CHECK_TARGETS<1>: Checks, Gauge, "nodelb_health_check_targets", [state = "Healthy, Unhealthy, Unchecked"],
        "Health check targets by state";
    HEALTH_CHECKS<1>: Checks, Counter, "nodelb_health_checks_total",
        [result = "Passed, Refused, Timeout, Unreachable, Status, Protocol, Unasked"],
        "Health checks by result; Unasked means that this host could not send them";
    HEALTH_CHECKS_OPEN: Checks, Gauge, "nodelb_health_checks_open", [], "Health checks in progress";
    HEALTH_CHECKS_LATE: Checks, Counter, "nodelb_health_checks_late_seconds_total", [],
        "Total delay of health checks behind their schedule; divided by their number, the average delay";

    SOCKETS_DESTROYED<1>: Sockets, Counter, "nodelb_sockets_destroyed_total", [protocol = "udp, tcp"],
        "Sockets closed because their backend is gone, or because they connected before the service had one";
    SOCKET_PASSES: Sockets, Counter, "nodelb_socket_passes_total", [],
        "Number of passes over all sockets: after backends are removed, and every minute";
    SOCKET_LAST_PASS: Sockets, Gauge, "nodelb_socket_last_pass_seconds", [], "Time since the last pass over all \
         sockets";
    SOCKET_ERRORS: Sockets, Counter, "nodelb_socket_errors_total", [],
        "Failed passes and sockets that could not be closed; see the journal";
    SOCKET_REAPER_UP: Sockets, Gauge, "nodelb_socket_reaper_up", [],
        "1 if stale sockets can be closed, 0 if the reaper process has ended";

    READY: Process, Gauge, "nodelb_ready", [], "1 while `/readyz` answers 200, else 0";
    LOG_LINES_DROPPED: Process, Counter, "nodelb_log_lines_dropped_total", [],
        "Log lines dropped because journald, or the reader of the daemon's stderr, was too slow";
    ADMIN_LISTENERS_CLOSED: Process, Gauge, "nodelb_admin_listeners_closed", [],
        "Addresses of `admin.listen` that are not open";
    BUILD_INFO<1>: Process, Info, "nodelb_build_info", [version = "one"], "Version of nodelb";
    START_TIME: Process, Gauge, "process_start_time_seconds", [], "Start time of the daemon in seconds since 1970";
    CPU_TIME: Process, Counter, "process_cpu_seconds_total", [], "CPU time used by the daemon";
    RESIDENT_MEMORY: Process, Gauge, "process_resident_memory_bytes", [], "Resident memory of the daemon";
    OPEN_FDS: Process, Gauge, "process_open_fds", [], "Number of open file descriptors";
    MAX_FDS: Process, Gauge, "process_max_fds", [], "Maximum number of open file descriptors";
}

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;
