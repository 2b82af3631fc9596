//! The catalogue of problems: the only list of what counts as wrong, with severity and next command.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How bad a problem is, the least first: what it does to new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[derive(strum::Display, strum::EnumIter, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Severity {
    /// Connections work; worth knowing.
    Notice,
    /// Some connections fail or may fail soon, or changes are not applied.
    Warning,
    /// All connections to a service, or to this node's services, fail now.
    Critical,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasonEntry {
    pub name: &'static str,
    pub severity: Severity,
    /// The next command; `{}` stands for the object.
    pub command: &'static str,
    /// The alerts of `contrib/prometheus` that report the same.
    pub alerts: &'static [&'static str],
    pub meaning: &'static str,
}

/// Defines the reasons and the catalogue in one order.
macro_rules! reasons {
    ($($name:ident, $severity:ident, $command:literal, [$($alert:literal),*], $meaning:literal;)*) => {
        /// The kind of a problem.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[derive(strum::Display)]
        pub enum Reason {
            $(#[doc = concat!($meaning, ".")] $name,)*
        }

        impl Reason {
            /// Every reason, in the order of [`Self::CATALOGUE`]. Among problems of equal severity, an earlier reason
            /// comes first.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
            /// The rows in the order of the variants.
            pub const CATALOGUE: &'static [ReasonEntry] = &[$(ReasonEntry {
                name: stringify!($name),
                severity: Severity::$severity,
                command: $command,
                alerts: &[$($alert),*],
                meaning: $meaning,
            }),*];
        }
    };
}

reasons! {
    LoopStuck, Critical, "journalctl -u nodelb", ["NodelbNotReady"],
        "The reconcile loop is stuck, and changes are not applied";
    NotTranslated, Critical, "nodelb config", [],
        "The datapath is in memory, and no connection of the node is translated";
    HooksNotInEffect, Critical, "nodelb diff", ["NodelbNotReady", "NodelbHooksNotInEffect"],
        "The BPF programs do not apply to the processes of the node, and connections are not translated";
    DevicesFailed, Critical, "nodelb devices", ["NodelbNotReady", "NodelbPacketDeviceFailed"],
        "Packets from outside the node are not translated at a network device";
    NoApiserver, Warning, "nodelb apiservers", ["NodelbNoApiserver"],
        "No API server responds, and the last known state is served; critical if there is none";
    CredentialsRefused, Warning, "nodelb apiservers", [],
        "New credentials do not work or cannot be read, and the connection keeps the previous ones";
    NotSynced, Critical, "nodelb sources", ["NodelbNotReady", "NodelbSourceNotSynced"],
        "A source has not reported everything since the start, and nothing of it is removed";
    NodeMissing, Warning, "nodelb config", [],
        "Kubernetes has no Node of this name, and load balancers stop sending traffic to this node";
    NodeWithoutAddress, Critical, "nodelb devices", ["NodelbNodeWithoutAddress"],
        "No device that is up has an address towards other machines, and backends there are not reached";
    ChecksUnsent, Warning, "nodelb backends", [],
        "Health checks cannot be sent, and the backends keep their state";
    NoBackends, Critical, "nodelb diagnose {}", ["NodelbServiceWithoutBackends", "NodelbConnectionsRefused"],
        "A service has no usable backend, and connections to it are refused";
    ReconcileFailing, Critical, "nodelb diff", ["NodelbReconcileFailing"],
        "The kernel maps do not accept an entry, and connections to it are not translated, or as before";
    Held, Warning, "nodelb diagnose {}", ["NodelbServiceHeld"],
        "A service that leads to an API server was emptied, or DNS servers fail, and the last known backends stay in use";
    Conflict, Critical, "nodelb diagnose {}", ["NodelbFrontendsInError"],
        "Another service owns an address of the service, or another source describes the service";
    Refused, Critical, "nodelb diagnose {}", ["NodelbFrontendsInError"],
        "nodelb refuses to serve an address of the service; a notice if a process of the node is meant to have it";
    FileNotServed, Warning, "nodelb sources", ["NodelbFileNotServed"],
        "A service file has problems, and the last changes to it are not served; critical if no valid version of it is";
    SourceFailing, Warning, "nodelb sources", ["NodelbSourceFailing"],
        "The services directory cannot be read, or a watch does not work";
    SourceProblems, Warning, "nodelb sources", [],
        "Single objects of a source have problems and are not served as described";
    SourceAbsent, Warning, "nodelb sources", [],
        "A source is no longer configured, and its services are kept as last known and not updated";
    WatchStale, Warning, "nodelb apiservers", ["NodelbWatchStale"],
        "Nothing was received from a watch for 10 minutes, or the services directory was not read";
    LastResort, Critical, "nodelb backends {}", ["NodelbLastResort"],
        "Every backend of a service failed its health checks, and all of them are used as a last resort; a warning while clients outside the node are connected, unless the check is by HTTP";
    BackendsQuarantined, Warning, "nodelb backends {}", ["NodelbBackendsQuarantined"],
        "Some backends of a service failed their health checks and are not used";
    BackendsDrained, Notice, "nodelb backends {}", [],
        "The operator drains backends of a service, and new connections avoid them";
    HealthCheckInvalid, Warning, "nodelb services {}", [],
        "Annotations of a Service ask for health checks that nodelb cannot make, and its backends are not checked";
    Pending, Critical, "nodelb diagnose {}", ["NodelbFrontendsPending"],
        "The kernel does not have an address of the service after 10 seconds";
    LoadBalancerPending, Warning, "nodelb services {}", ["NodelbLoadBalancerPending"],
        "A service of type LoadBalancer has had no load balancer address for 10 minutes";
    NodePortBound, Warning, "nodelb diagnose {}", [],
        "A process of the node has bound a NodePort, and gets the connections from outside that nodelb does not translate";
    NodeAddressUnanswered, Warning, "nodelb diff", [],
        "NodePorts do not work on an address of the node";
    HealthCheckPortClosed, Warning, "journalctl -u nodelb", [],
        "Load balancers get no answer to their health checks; a notice while another service proxy is present, which answers";
    ProgrammingSlow, Warning, "nodelb history", ["NodelbProgrammingSlow"],
        "Changes of EndpointSlices took more than 10 seconds until the kernel had them";
    MapNearlyFull, Warning, "nodelb maps", ["NodelbMapNearlyFull", "NodelbPacketConnectionsNearlyFull"],
        "A kernel map is more than 90 % full";
    NotConsistent, Warning, "nodelb maps", [],
        "Another node may lead clients of a service to another backend, because the slots have no room for the consistent choice";
    PacketPathFailed, Warning, "nodelb devices", ["NodelbOutsideUntranslated"],
        "Connections from outside the node are not translated, or only by programs of an earlier start";
    OutsideUntranslated, Warning, "nodelb devices", ["NodelbOutsideUntranslated"],
        "New connections from outside the node are not translated; a notice while another service proxy has them";
    DeviceMissing, Notice, "nodelb devices", [],
        "No device has a name that `packets.devices` contains, and connections by such a device are not translated";
    ProgramInFront, Warning, "nodelb devices", [],
        "A program of other software runs before nodelb's at a network device and may take its packets";
    PinsNotOwn, Warning, "nodelb config", [],
        "Another user owns the pin directory or can change it: nodelb cannot restore pins, and does not start again";
    XdpTaken, Notice, "nodelb devices", [],
        "Other software has XDP at a device, and nodelb translates packets there later, at a higher cost";
    HooksShared, Notice, "nodelb diff --probe", [],
        "Programs of other software run at the hooks of nodelb; the first that has an address translates it";
    PacketPortsExhausted, Warning, "nodelb drops", ["NodelbPacketPortsExhausted"],
        "In the last 5 minutes, no source port was free for a connection from outside the node to a backend elsewhere";
    PacketsNotRouted, Warning, "nodelb drops", ["NodelbPacketsNotRouted"],
        "In the last 5 minutes, the node had no route for packets from outside, or may not forward them";
    IpsecProtects, Warning, "ip xfrm policy", ["NodelbIpsecProtects"],
        "Policies of IPsec protect packets of services, which nodelb cannot encrypt, so that it drops connections from outside";
    NotForwarding, Critical, "nodelb frontends", ["NodelbPacketsNotRouted"],
        "The kernel forwards no packets, and services need that for clients outside the node; a warning if some backends are reached without";
    ForwardPolicy, Notice, "nft list ruleset", [],
        "A firewall drops forwarded packets unless a rule accepts them, and backends behind it have answered no client outside the node yet";
    GatewayWithoutPrograms, Warning, "nodelb devices", [],
        "A device leads to backends through a router and has no programs, so that clients outside the node get no answer from them";
    StrictReversePath, Notice, "nodelb devices", [],
        "The node has several ways out and rp_filter is 1, so that a client must arrive by the device that leads back to it";
    SweepFailing, Warning, "journalctl -u nodelb", [],
        "Connections from outside the node that have ended cannot be deleted and occupy room";
    ReaperDown, Warning, "systemctl status nodelb-reaper.socket", ["NodelbReaperDown"],
        "Stale sockets cannot be closed";
    FilesShort, Warning, "systemctl cat nodelb", ["NodelbFilesShort"],
        "The daemon uses more than 80 % of its file descriptors";
    StateUnwritten, Warning, "journalctl -u nodelb", [],
        "Files of the state directory cannot be written";
    StateUnread, Warning, "journalctl -u nodelb", [],
        "Files of the state directory could not be read at the start, and what they contain is not in effect yet";
    Restarts, Warning, "journalctl -u nodelb", ["NodelbRestarts"],
        "The daemon ended unexpectedly 3 times in 30 minutes";
    ExternalChanges, Warning, "nodelb history", ["NodelbDriftRepaired"],
        "Another program changed the kernel maps or hooks in the last 15 minutes, and nodelb repaired them";
    ConfigRefused, Warning, "nodelb check-config", ["NodelbConfigRefused"],
        "The configuration had an error when it was reloaded, so that the previous one stays in use";
    ListenerClosed, Warning, "journalctl -u nodelb", [],
        "An address of `admin.listen` cannot be opened";
    RestartPending, Warning, "systemctl restart nodelb", [],
        "A changed configuration key takes effect only after a restart";
    NoOutsideBackend, Critical, "nodelb diagnose {}", ["NodelbNoOutsideBackend"],
        "Clients outside the node reach no backend of a service of a file; a warning if that concerns only some backends, or this node";
    Unanswered, Critical, "nodelb diagnose {}", ["NodelbServiceUnanswered"],
        "No backend of a service has accepted its last connections from outside the node, three or more; a warning if others do";
    NoLocalBackend, Critical, "nodelb diagnose {}", ["NodelbConnectionsRefused"],
        "A service with the internal traffic policy Local has no backend on this node, and connections from here are refused";
}

impl Reason {
    pub fn entry(self) -> &'static ReasonEntry {
        &Self::CATALOGUE[self as usize]
    }
}
