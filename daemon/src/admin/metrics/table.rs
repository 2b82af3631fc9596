//! The only list of metrics. `docs/metrics.md` is generated from it.
//!
//! A name follows OpenMetrics: it ends in the unit, and for a counter in `_total`. The number of label values is
//! bounded, and the row states the bound. Some metrics have the names that kube-proxy uses, for existing dashboards.

use super::family::{Group, Label, Metric, MetricKind};

/// Defines each metric as a static, and the table of all metrics in this order.
macro_rules! metrics {
    ($($id:ident: $group:ident, $kind:ident, $name:literal, [$($label:ident = $values:literal),*], $help:literal;)*) => {
        $(#[doc = concat!("`", $name, "`: ", $help, ".")]
        pub(in crate::admin) static $id: Metric<[Label; <[&str]>::len(&[$(stringify!($label)),*])]> = Metric {
            group: Group::$group,
            name: $name,
            kind: MetricKind::$kind,
            help: $help,
            labels: [$(Label { name: stringify!($label), values: $values }),*],
        };)*

        /// Every metric, by group.
        pub static METRICS: &[&Metric] = &[$(&$id),*];
    };
}

metrics! {
    SERVICES: Services, Gauge, "nodelb_services", [], "Number of services that the sources describe";
    SERVICES_HELD: Services, Gauge, "nodelb_services_held", [],
        "Number of services that keep their last known backends, because they lead to an API server and a source removed the backends, or because their DNS names cannot be resolved";
    SERVICES_WITHOUT_BACKENDS: Services, Gauge, "nodelb_services_without_backends", [],
        "Number of services with a port that has no backend for new connections";
    SERVICES_LOAD_BALANCER_PENDING: Services, Gauge, "nodelb_services_load_balancer_pending", [],
        "Number of services of type LoadBalancer that have no load balancer address yet";
    FRONTENDS: Services, Gauge, "nodelb_frontends", [status = "OK, NoBackends, LastResort, Held, Kept, Conflict, Refused, Pending"],
        "Number of addresses that services claim, by status";
    FRONTENDS_REFUSED: Services, Gauge, "nodelb_frontends_refused", [],
        "Number of claimed addresses that nodelb refuses to serve";
    FRONTEND_CONFLICTS: Services, Gauge, "nodelb_frontend_conflicts", [],
        "Number of claims to an address that another service, or another port of the same service, owns";
    BACKENDS: Services, Gauge, "nodelb_backends",
        [state = "Active, Terminating, Quarantined, Maintenance, NotReady"],
        "Number of backends of all service ports, by state according to their source and nodelb's own health checks";
    BACKENDS_SELECTABLE: Services, Gauge, "nodelb_backends_selectable", [],
        "Number of backends of all service ports that receive new connections";
    DRAINS: Services, Gauge, "nodelb_drains", [], "Number of drains by `nodelb drain`";
    HEALTH_CHECK_NODE_PORTS: Services, Gauge, "nodelb_health_check_node_ports", [],
        "Number of services with a healthCheckNodePort";
    HEALTH_CHECK_NODE_PORTS_FAILED: Services, Gauge, "nodelb_health_check_node_ports_failed", [],
        "Number of these services with a port that cannot be opened on every address";
    NODEPORTS_BOUND: Services, Gauge, "nodelb_nodeports_bound", [],
        "Number of NodePorts that a process of the node has bound, and to which connections from outside reach that process unless nodelb translates them";
    NODE_ADDRESSES_UNANSWERED: Services, Gauge, "nodelb_node_addresses_unanswered", [],
        "Number of node addresses on which NodePorts are not answered because the kernel did not accept the address";
    SERVICE_CONNECTIONS: Services, Counter, "nodelb_service_connections_total",
        [service = "the 1,000 service ports that had connections first, and `other` for the rest", port = "the name of the service's port", protocol = "TCP, UDP", from = "inside, outside", result = "translated, refused"],
        "Connections of this node's processes (inside): each TCP connect, and each assignment of a backend to a UDP socket; if refused, each datagram. Connections of clients outside the node (outside); if refused or dropped, each packet. The series of a service port ends when it is removed, unless it is made again before the next request for the metrics, without the connections since the last one";

    EVENT_TO_KERNEL: Changes, Histogram, "nodelb_event_to_kernel_duration_seconds", [],
        "Time from the receipt of a change of a service port until the kernel's maps contain it, including retries";
    RECONCILE: Changes, Histogram, "nodelb_reconcile_duration_seconds", [],
        "Duration of a reconcile round";
    RECONCILES: Changes, Counter, "nodelb_reconciles_total", [], "Number of reconcile rounds";
    RECONCILE_OPERATIONS: Changes, Counter, "nodelb_reconcile_operations_total", [result = "done, failed"],
        "Number of operations on the kernel's maps, by result";
    RECONCILE_RETRIES: Changes, Counter, "nodelb_reconcile_retries_total", [],
        "Number of reconcile rounds that only a retry triggered";
    NETWORK_PROGRAMMING: Changes, Histogram, "kubeproxy_network_programming_duration_seconds", [],
        "Time from the change of a pod or service, according to its EndpointSlice, until the kernel's maps contain it; the name is kube-proxy's";
    SYNC_PROXY_RULES: Changes, Histogram, "kubeproxy_sync_proxy_rules_duration_seconds", [],
        "The same as `nodelb_reconcile_duration_seconds` with kube-proxy's name and buckets";

    MAP_ENTRIES: Kernel, Gauge, "nodelb_map_entries", [map = "frontends, services, slots, affinity, outside, source_ranges, connections, half_open"],
        "Number of entries in use in the kernel's maps; for slots including those that rest before reuse; of affinity, connections and half_open at the last count, at most 30 seconds ago";
    MAP_LIMIT: Kernel, Gauge, "nodelb_map_limit", [map = "frontends, services, slots, affinity, outside, source_ranges, connections, half_open"],
        "Maximum number of entries";
    HOOKS_IN_EFFECT: Kernel, Gauge, "nodelb_hooks_in_effect", [],
        "1 while every program is attached and the canary is refused; 0 otherwise, when connections are not translated";
    DRIFT_REPAIRED: Kernel, Counter, "nodelb_drift_repaired_total", [kind = "frontend, service, slots, node_address, outside, source_range, uplink, link"],
        "Number of repaired map entries and links that another process had changed";
    DRIFT_CHECKS: Kernel, Counter, "nodelb_drift_checks_total", [],
        "Number of checks of the kernel's maps for changes by other processes";
    DRIFT_LAST_CHECK_AGE: Kernel, Gauge, "nodelb_drift_last_check_age_seconds", [],
        "Time since the last such check; missing before the first";

    SOURCE_SYNCED: Sources, Gauge, "nodelb_source_synced", [source = "files, kubernetes"],
        "1 once the source has reported its initial state; 0 before, when nothing of it is removed";
    SOURCE_PATHS: Sources, Gauge, "nodelb_source_paths", [source = "files, kubernetes", state = "Ok, LastGood, Error"],
        "Number of paths in `nodelb sources` (files, and kinds of objects), by whether their current content is served";
    SOURCE_PROBLEMS: Sources, Gauge, "nodelb_source_problems", [source = "files, kubernetes"],
        "Number of their problems, as shown by `nodelb sources`";
    FILES_CONTENT: Sources, Info, "nodelb_files_content_info", [hash = "the hash, one at a time"],
        "The hash of all service files of which a version is served, the same on every host with the same files";
    SOURCE_UP: Sources, Gauge, "nodelb_source_up",
        [source = "files, kubernetes", kind = "directory, dns, services, endpointslices, nodes"],
        "1 while the directory can be read, no DNS name lacks an answer or every watch of the kind works, else 0";
    SOURCE_AGE: Sources, Gauge, "nodelb_source_age_seconds",
        [source = "files, kubernetes", kind = "directory, dns, services, endpointslices, nodes"],
        "Time since the directory was last read or any response about the kind, such as a bookmark, was received; missing before the first";

    APISERVERS: Apiservers, Gauge, "nodelb_apiservers",
        [state = "Untried, Healthy, Recovering, NotReady, Failed, Refused"],
        "Number of known API server addresses, by state";
    APISERVER_CONNECTED: Apiservers, Gauge, "nodelb_apiserver_connected", [], "1 while an API server is in use, else 0";
    APISERVER_LAST_RESPONSE: Apiservers, Gauge, "nodelb_apiserver_last_response_seconds", [],
        "Time since the last response of an API server, which bounds the staleness of services; missing before the first";
    APISERVER_SWITCHES: Apiservers, Counter, "nodelb_apiserver_switches_total", [],
        "Number of switches to a different API server";

    DNS_NAMES: Dns, Gauge, "nodelb_dns_names", [state = "Ok, Held, Empty, Pending"],
        "Number of questions about DNS names in service files, by state: the last known records of Held ones are in use, and Empty ones have none";
    DNS_QUERIES: Dns, Counter, "nodelb_dns_queries_total", [result = "Records, Empty, NoSuchName, Failed, Timeout"],
        "Number of questions to DNS servers, by result; Failed are error codes such as SERVFAIL and failed connections";

    HEALTH_CHECK_TARGETS: Checks, Gauge, "nodelb_health_check_targets", [state = "Healthy, Unhealthy, Unchecked"],
        "Number of addresses with health checks, by state";
    HEALTH_CHECKS: Checks, Counter, "nodelb_health_checks_total",
        [result = "Passed, Refused, Timeout, Unreachable, Status, Protocol, Unasked"],
        "Number of health checks, by result; Unasked are those that this host could not make";
    HEALTH_CHECKS_OPEN: Checks, Gauge, "nodelb_health_checks_open", [],
        "Number of health checks that wait for a response";
    HEALTH_CHECKS_LATE: Checks, Counter, "nodelb_health_checks_late_seconds_total", [],
        "Total delay of health checks after their scheduled time; divided by their number, the mean delay";

    SOCKETS_DESTROYED: Sockets, Counter, "nodelb_sockets_destroyed_total", [protocol = "udp, tcp"],
        "Number of sockets that were closed because their backend was removed, or because they were connected before the service had a backend";
    SOCKET_PASSES: Sockets, Counter, "nodelb_socket_passes_total", [],
        "Number of searches for stale sockets: after backends were removed, and every minute";
    SOCKET_LAST_PASS: Sockets, Gauge, "nodelb_socket_last_pass_seconds", [],
        "Time since the last search for stale sockets";
    SOCKET_ERRORS: Sockets, Counter, "nodelb_socket_errors_total", [],
        "Number of failed searches for stale sockets and of sockets that could not be closed; the journal has the errors";
    SOCKET_REAPER_UP: Sockets, Gauge, "nodelb_socket_reaper_up", [],
        "1 while stale sockets can be closed, 0 if the process that closes them has stopped";

    PACKET_TRANSLATED: Packets, Counter, "nodelb_packet_translated_total", [direction = "forward, reverse"],
        "Number of translated packets: from clients outside the node, and from backends";
    PACKET_DROPPED: Packets, Counter, "nodelb_packet_dropped_total",
        [reason = "short, ttl, mtu, fragment, no-backend, no-local-backend, source-range, no-port, no-route, no-forwarding, no-room, unknown, answer-rate, reverse-path, mtu-no-df, fragment-rate, served-source, not-served, echo, false-error, ipsec, encapsulation, tunnel-source"],
        "Number of packets to services that were dropped, or were answered by this node, by reason";
    PACKET_PASSED: Packets, Counter, "nodelb_packet_passed_total",
        [reason = "short, no-forwarding, no-room, unknown"],
        "Number of packets that were passed on although they cannot be read, reach a backend only with forwarding, belong to a connection for which there is no room, or to one that nodelb does not know, by reason";
    PACKET_ANSWERED: Packets, Counter, "nodelb_packet_answered_total", [kind = "rst, icmp"],
        "Number of TCP RSTs, and of ICMP errors and echo replies, that this node sent for a service or its address, by kind";
    PACKET_CONNECTIONS_CREATED: Packets, Counter, "nodelb_packet_connections_created_total", [],
        "Number of new connections of clients outside the node, without TCP connections that other nodes have begun";
    PACKET_SNAT_TRIES: Packets, Counter, "nodelb_packet_snat_tries_total", [],
        "Number of source ports that were tried for connections to backends on other nodes";
    PACKET_CONNECTIONS: Packets, Gauge, "nodelb_packet_connections", [],
        "Number of translated connections that both sides have answered, at the last count";
    PACKET_HANDSHAKES: Packets, Gauge, "nodelb_packet_handshakes", [],
        "Number of translated connections that the backend or the client has not answered, or that have no room among the connections, such as UDP flows beyond half of packets.max-connections, at the last count";
    PACKET_FORWARDED: Packets, Gauge, "nodelb_packet_forwarded_connections", [],
        "Number of connections with direct return, at the last count";
    PACKET_CONNECTIONS_LIMIT: Packets, Gauge, "nodelb_packet_connections_limit", [],
        "Maximum number of connections of clients outside the node";
    PACKET_OUTCOMES: Packets, Counter, "nodelb_packet_outcomes_total", [outcome = "answered, refused, unanswered"],
        "Number of connections of clients outside the node by what their backend did within three seconds: it answered, sent RST, or sent nothing; with direct return, the client's packets show that";
    PACKET_SWEPT: Packets, Counter, "nodelb_packet_swept_total", [reason = "handshake, closed, reset, idle"],
        "Number of connections that nodelb has forgotten, by reason";
    PACKET_SWEEP_DURATION: Packets, Gauge, "nodelb_packet_sweep_duration_seconds", [],
        "Duration of the last search for connections that have ended";
    PACKET_SWEEP_FAILURES: Packets, Counter, "nodelb_packet_sweep_failures_total", [],
        "Number of searches for connections that have ended which failed";
    PACKET_DEVICES: Packets, Gauge, "nodelb_packet_devices", [state = "attached, unused, failed"],
        "Number of network devices, by the state of nodelb's programs there";

    PROBLEMS: Process, Gauge, "nodelb_problems",
        [severity = "notice, warning, critical", reason = "the reasons in docs/operations.md"],
        "Number of problems that `nodelb status` shows, by severity and reason";
    READY: Process, Gauge, "nodelb_ready", [], "1 while `/readyz` returns 200, else 0";
    LOG_LINES_DROPPED: Process, Counter, "nodelb_log_lines_dropped_total", [],
        "Number of log lines that were dropped because journald, or the reader of the daemon's stderr, did not accept them in time";
    ADMIN_LISTENERS_CLOSED: Process, Gauge, "nodelb_admin_listeners_closed", [],
        "Number of addresses of `admin.listen` that cannot be opened";
    BUILD_INFO: Process, Info, "nodelb_build_info", [version = "the version"], "The version of nodelb";
    START_TIME: Process, Gauge, "process_start_time_seconds", [], "Start time of the daemon, in seconds since 1970";
    CPU_TIME: Process, Counter, "process_cpu_seconds_total", [], "CPU time that the daemon has used";
    RESIDENT_MEMORY: Process, Gauge, "process_resident_memory_bytes", [], "Resident memory of the daemon";
    OPEN_FDS: Process, Gauge, "process_open_fds", [], "Number of open file descriptors";
    MAX_FDS: Process, Gauge, "process_max_fds", [], "Maximum number of open file descriptors";
}

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;
