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
    SERVICES: Services, Gauge, "nodelb_services", [], "Services that the sources describe";
    SERVICES_HELD: Services, Gauge, "nodelb_services_held", [],
        "Services kept as they were although a source emptied them: they lead to an apiserver";
    SERVICES_WITHOUT_BACKENDS: Services, Gauge, "nodelb_services_without_backends", [],
        "Services of which a port has no backend that a new connection can reach";
    SERVICES_AWAITING: Services, Gauge, "nodelb_services_awaiting_load_balancer", [],
        "Services of type LoadBalancer that no load balancer has an address for yet";
    FRONTENDS<1>: Services, Gauge, "nodelb_frontends", [status = "Pending, Done, Held, Error"],
        "Addresses that services claim, by how they stand";
    FRONTENDS_REFUSED: Services, Gauge, "nodelb_frontends_refused", [],
        "Addresses that nodelb refuses to serve, whoever claims them";
    FRONTENDS_OUTRANKED: Services, Gauge, "nodelb_frontends_outranked", [],
        "Claims to an address that another service owns, or another port of the same";
    BACKENDS<1>: Services, Gauge, "nodelb_backends",
        [state = "Active, Terminating, Quarantined, Maintenance, NotReady"],
        "Backends of services, once for each port, by what their source says or nodelb's own checks found";
    BACKENDS_SELECTABLE: Services, Gauge, "nodelb_backends_selectable", [],
        "Backends that a new connection can reach, once for each port";
    LOCAL_ENTRY_PORTS: Services, Gauge, "nodelb_local_entry_ports", [],
        "Services with a healthCheckNodePort that load balancers ask at";
    LOCAL_ENTRY_PORTS_FAILED: Services, Gauge, "nodelb_local_entry_ports_failed", [],
        "Of these, the ones that cannot be listened on, or not everywhere";
    NODEPORTS_BOUND: Services, Gauge, "nodelb_nodeports_bound", [],
        "NodePorts that a process of the node has bound, so that what comes from outside reaches it, not the service";
    NODE_ADDRESSES_UNANSWERED: Services, Gauge, "nodelb_node_addresses_unanswered", [],
        "Addresses of the node on which NodePorts are not answered because the kernel did not take them";
    SERVICE_CONNECTIONS<4>: Services, Counter, "nodelb_service_connections_total",
        [service = "the 1,000 service ports that had connections first, and `other` for the rest", port = "of the service", protocol = "TCP, UDP", result = "translated, refused"],
        "Connections of this node's processes: TCP connects, and UDP sockets each time they are given a backend; of the refused ones every datagram";

    EVENT_TO_KERNEL: Changes, Histogram, "nodelb_event_to_kernel_duration_seconds", [],
        "From when nodelb took up a change of a service port until the kernel had it; with retries, if it needed any";
    RECONCILE: Changes, Histogram, "nodelb_reconcile_duration_seconds", [],
        "How long a round took that brings the kernel to what the sources say";
    RECONCILES: Changes, Counter, "nodelb_reconciles_total", [], "Rounds that brought the kernel to what the sources say";
    RECONCILE_OPERATIONS<1>: Changes, Counter, "nodelb_reconcile_operations_total", [result = "done, failed"],
        "Operations on the kernel's maps by what came of them";
    RECONCILE_RETRIES: Changes, Counter, "nodelb_reconcile_retries_total", [],
        "Rounds only because something had failed, or had to wait, before";
    NETWORK_PROGRAMMING: Changes, Histogram, "kubeproxy_network_programming_duration_seconds", [],
        "From when a pod or service changed, as its EndpointSlice says, until the kernel had it; kube-proxy's name for it";
    SYNC_PROXY_RULES: Changes, Histogram, "kubeproxy_sync_proxy_rules_duration_seconds", [],
        "The same as `nodelb_reconcile_duration_seconds` under kube-proxy's name and with its buckets";

    MAP_ENTRIES<1>: Kernel, Gauge, "nodelb_map_entries", [map = "frontends, services, slots, affinity"],
        "Entries of the kernel's maps in use; of slots also those that rest before reuse";
    MAP_LIMIT<1>: Kernel, Gauge, "nodelb_map_limit", [map = "frontends, services, slots, affinity"],
        "Entries there is room for";
    HOOKS_IN_EFFECT: Kernel, Gauge, "nodelb_hooks_in_effect", [],
        "1 while every program is attached and the canary is refused, else 0: connections are not translated";
    DRIFT_REPAIRED<1>: Kernel, Counter, "nodelb_drift_repaired_total", [kind = "frontend, service, slots, node_address, link"],
        "Entries of the maps, and links, that somebody else had changed and that were put right";
    DRIFT_CHECKS: Kernel, Counter, "nodelb_drift_checks_total", [],
        "How often the maps were compared with what they should hold";
    DRIFT_LAST_CHECK_AGE: Kernel, Gauge, "nodelb_drift_last_check_age_seconds", [],
        "Time since that was last done; missing before";

    SOURCE_SYNCED<1>: Sources, Gauge, "nodelb_source_synced", [source = "files, kubernetes"],
        "1 once the source has sent all it had at the start, else 0: until then nothing is removed";
    SOURCE_PLACES<2>: Sources, Gauge, "nodelb_source_places", [source = "files, kubernetes", state = "Ok, LastGood, Error"],
        "Files and kinds of objects that services are read from, by whether what they say is served";
    SOURCE_PROBLEMS<1>: Sources, Gauge, "nodelb_source_problems", [source = "files, kubernetes"],
        "What is wrong with them, as shown by `nodelb sources`";
    SOURCE_UP<2>: Sources, Gauge, "nodelb_source_up",
        [source = "files, kubernetes", kind = "directory, services, endpointslices, nodes"],
        "1 while the directory can be read or the watch is up to date, else 0";
    SOURCE_AGE<2>: Sources, Gauge, "nodelb_source_age_seconds",
        [source = "files, kubernetes", kind = "directory, services, endpointslices, nodes"],
        "Time since the directory was last looked at or anything was heard of the kind, a bookmark counts; missing before";

    APISERVERS<1>: Apiservers, Gauge, "nodelb_apiservers",
        [state = "Untried, Healthy, Recovering, NotReady, Failed, Refused"],
        "Known apiserver addresses by how they stand";
    APISERVER_CONNECTED: Apiservers, Gauge, "nodelb_apiserver_connected", [], "1 while an apiserver is in use, else 0";
    APISERVER_LAST_RESPONSE: Apiservers, Gauge, "nodelb_apiserver_last_response_seconds", [],
        "Time since anything was last heard from an apiserver: how stale the services may be; missing before";
    APISERVER_SWITCHES: Apiservers, Counter, "nodelb_apiserver_switches_total", [],
        "How often another apiserver than before came into use";

    HEALTH_CHECK_TARGETS<1>: Checks, Gauge, "nodelb_health_check_targets", [state = "Healthy, Unhealthy, Unchecked"],
        "Addresses that health checks ask, by how they stand";
    HEALTH_CHECKS<1>: Checks, Counter, "nodelb_health_checks_total",
        [result = "Passed, Refused, Timeout, Unreachable, Status, Protocol, Unasked"],
        "Health checks by what came of them; Unasked are those that this host could not make";
    HEALTH_CHECKS_OPEN: Checks, Gauge, "nodelb_health_checks_open", [], "Health checks that wait for an answer";
    HEALTH_CHECKS_LATE: Checks, Counter, "nodelb_health_checks_late_seconds_total", [],
        "By how much health checks began later than they were due, all together: by their number, how far nodelb is behind";

    SOCKETS_DESTROYED<1>: Sockets, Counter, "nodelb_sockets_destroyed_total", [protocol = "udp, tcp"],
        "Sockets ended because their backend was gone, or because they dialled before there was one";
    SOCKET_PASSES: Sockets, Counter, "nodelb_socket_passes_total", [],
        "How often all sockets were looked at: when backends went away, and every minute";
    SOCKET_LAST_PASS: Sockets, Gauge, "nodelb_socket_last_pass_seconds", [], "Time since all sockets were last looked at";
    SOCKET_ERRORS: Sockets, Counter, "nodelb_socket_errors_total", [],
        "Passes, and sockets, that something went wrong with; the journal says what";
    SOCKET_REAPER_UP: Sockets, Gauge, "nodelb_socket_reaper_up", [],
        "1 while sockets can be ended, 0 if the process that does it has ended";

    READY: Process, Gauge, "nodelb_ready", [], "1 while `/readyz` answers 200, else 0";
    LOG_LINES_DROPPED: Process, Counter, "nodelb_log_lines_dropped_total", [],
        "Log lines that were dropped because journald, or what reads the daemon's stderr, did not take them in time";
    ADMIN_LISTENERS_CLOSED: Process, Gauge, "nodelb_admin_listeners_closed", [],
        "Addresses of `admin.listen` that cannot be opened now";
    BUILD_INFO<1>: Process, Info, "nodelb_build_info", [version = "one"], "Which nodelb it is";
    START_TIME: Process, Gauge, "process_start_time_seconds", [], "When the daemon started, in seconds since 1970";
    CPU_TIME: Process, Counter, "process_cpu_seconds_total", [], "Processor time that the daemon has used";
    RESIDENT_MEMORY: Process, Gauge, "process_resident_memory_bytes", [], "Memory that the daemon holds";
    OPEN_FDS: Process, Gauge, "process_open_fds", [], "Files and sockets that the daemon has open";
    MAX_FDS: Process, Gauge, "process_max_fds", [], "How many it may open";
}

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;
