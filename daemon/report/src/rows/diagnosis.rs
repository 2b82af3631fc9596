//! The response of `nodelb diagnose`: the findings about one service. [`crate::diagnosis_text`] renders it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// The severity of a finding, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FindingSeverity {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Info,
    /// Something is wrong, or will be.
    Warning,
    /// Connections fail because of it.
    Critical,
}

/// Defines the kinds of findings with their names in JSON.
macro_rules! kinds {
    ($(#[doc = $meaning:literal] $name:ident = $text:literal,)*) => {
        /// The kind of a finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        pub enum FindingKind {
            $(#[doc = $meaning] #[serde(rename = $text)] $name,)*
        }

        impl FindingKind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The name in output.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// The meaning, for the documents.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning.trim(),)*
                }
            }
        }
    };
}

kinds! {
    /// The maps are in memory, and no connection is translated.
    NotTranslated = "not-translated",
    /// The BPF programs do not apply to the processes of the node.
    HooksNotInEffect = "hooks-not-in-effect",
    /// This command is not in the cgroup with the processes that use services.
    OutsideCgroup = "outside-cgroup",
    /// Programs of other software run at the same hooks, and may translate the service.
    HooksShared = "hooks-shared",
    /// The reconcile loop of the daemon is stuck.
    LoopStuck = "loop-stuck",
    /// The daemon or this command lacks a permission.
    PermissionMissing = "permission-missing",
    /// The daemon has no API server.
    ApiserverAway = "apiserver-away",
    /// A source that existed before is not configured, or has not synced since nodelb started.
    SourceAbsent = "source-absent",
    /// The services directory cannot be read, or a watch does not work.
    SourceFailing = "source-failing",
    /// The daemon has not read everything since its start.
    NotSynced = "not-synced",
    /// The file with the service is not served, or not in its present form.
    FileNotServed = "file-not-served",
    /// Another place of a source has a problem, and may describe the service.
    SourceProblem = "source-problem",
    /// No witness knows a service of this name.
    NoSuchService = "no-such-service",
    /// The service is headless, or of type `ExternalName`.
    NotForProxies = "not-for-proxies",
    /// Two sources define the service, and one of the definitions is not used.
    DefinedTwice = "defined-twice",
    /// Another service owns an address.
    AddressConflict = "address-conflict",
    /// nodelb refuses to serve an address.
    AddressRefused = "address-refused",
    /// The kernel maps do not accept an entry.
    ReconcileFailing = "reconcile-failing",
    /// The kernel does not have an address yet.
    Pending = "pending",
    /// Connections get backends from before the start of nodelb, and the service has others now.
    Kept = "kept",
    /// The maps do not contain what the daemon wrote.
    KernelDiffers = "kernel-differs",
    /// A process of the node has bound a NodePort of the service.
    NodePortBound = "node-port-bound",
    /// No pod has the labels of the selector.
    SelectorMatchesNothing = "selector-matches-nothing",
    /// The service has no selector, so only its author fills the slices.
    NoSelector = "no-selector",
    /// The service names a port that its slices do not have.
    PortMismatch = "port-mismatch",
    /// There are slices, but their endpoints were removed.
    SliceEmptied = "slice-emptied",
    /// There is no slice at all.
    SliceMissing = "slice-missing",
    /// Pods and slices disagree.
    SliceNotUpdated = "slice-not-updated",
    /// Endpoints are not ready.
    NotReady = "not-ready",
    /// A traffic policy is Local, and this node has no backend.
    NoLocalBackend = "no-local-backend",
    /// Backends are refused, in maintenance, or failed nodelb's health checks.
    BackendsUnusable = "backends-unusable",
    /// Every backend failed its health checks, and all of them are used as a last resort.
    LastResort = "last-resort",
    /// Some backends failed their health checks.
    BackendsQuarantined = "backends-quarantined",
    /// The operator drains some backends.
    BackendsDrained = "backends-drained",
    /// The Service asks for health checks that nodelb cannot make.
    HealthCheckInvalid = "health-check-invalid",
    /// The Service asks for health checks, and the daemon makes none for Services of Kubernetes.
    HealthChecksOff = "health-checks-off",
    /// The service has no backends, whatever the reason.
    NoBackends = "no-backends",
    /// A backend does not answer.
    BackendUnreachable = "backend-unreachable",
    /// Packets of clients outside the node are not translated, or do not arrive.
    PacketPath = "packet-path",
    /// Backends are held although the source removed them.
    Held = "held",
    /// The daemon's table differs from the cluster.
    MemoryDiffers = "memory-differs",
    /// The load balancer does not exist yet.
    LoadBalancerPending = "load-balancer-pending",
    /// Load balancers get no answer to their health checks.
    HealthCheckPortClosed = "health-check-port-closed",
    /// An address does not answer, and not because of a backend.
    FrontendFails = "frontend-fails",
    /// nodelb refuses connections to an address, because it has no backend.
    FrontendRefused = "frontend-refused",
    /// Connections to an address fail as those to one of its backends do.
    FrontendAffected = "frontend-affected",
    /// The daemon reports that it is not ready.
    DaemonNotReady = "daemon-not-ready",
    /// The daemon does not answer.
    DaemonSilent = "daemon-silent",
    /// No API server answers this command.
    ApiserverSilent = "apiserver-silent",
    /// A Kubernetes Event with its explanation.
    Event = "event",
    /// The service's name in DNS.
    DnsName = "dns-name",
    /// The number of endpoints in each condition.
    Endpoints = "endpoints",
    /// nodelb itself balances the API server that this command asked.
    ApiserverBalanced = "apiserver-balanced",
    /// Addresses that answer.
    Works = "works",
}

/// A problem or an observation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FindingRow {
    /// The severity.
    pub severity: FindingSeverity,
    /// The kind.
    pub kind: FindingKind,
    /// The finding that explains this one; absent for a cause.
    pub explained_by: Option<FindingKind>,
    /// The time since which it is so; absent if it is not known.
    pub since: Option<Time>,
    /// The file that it is about; absent if it is about no file.
    pub file: Option<String>,
    /// The line in the file that defines the service.
    pub line: Option<u64>,
    /// The finding in one sentence.
    pub what: String,
    /// The evidence, one sentence each.
    pub evidence: Vec<String>,
    /// What can be done about it; absent if nothing needs to be done.
    pub remedy: Option<String>,
    /// The command that shows more.
    pub command: Option<String>,
    /// Whether it is a detail, which text shows only if there is no problem, or on request.
    pub is_detail: bool,
}

impl FindingRow {
    #[must_use]
    pub fn severity(self, severity: FindingSeverity) -> Self {
        Self { severity, ..self }
    }

    /// The same with more evidence.
    #[must_use]
    pub fn evidence(mut self, evidence: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.evidence.extend(evidence.into_iter().map(Into::into));
        self
    }

    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// The same about this line of a file.
    #[must_use]
    pub fn at(self, file: impl Into<String>, line: Option<u64>) -> Self {
        Self { file: Some(file.into()), line, ..self }
    }
}

/// A check that was not made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkippedRow {
    /// The subject, such as `Events`.
    pub what: String,
    /// Why it was not checked.
    pub reason: String,
    /// The option with which it is checked, such as `--kubeconfig`.
    pub option: Option<String>,
}

/// A connection that the command made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConnectTestRow {
    /// The address.
    pub to: String,
    /// Whether it is the address of a backend, not one of the service.
    pub is_backend: bool,
    /// Whether the connection was accepted.
    pub accepted: bool,
    /// The error; absent if it was accepted.
    pub error: Option<String>,
    /// The time until it was accepted or failed, in milliseconds.
    pub milliseconds: f64,
}

/// The response of `nodelb diagnose`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// The namespace and name of the service.
    pub service: String,
    /// The name of this node.
    pub node: String,
    /// The time of the report.
    pub time: Time,
    /// The severity of the most severe finding.
    pub severity: FindingSeverity,
    /// Whether the daemon answered.
    pub daemon: bool,
    /// The API server that answered, and how it was found; absent if none did.
    pub apiserver: Option<String>,
    /// The findings: the causes, the most likely one first, then what they explain.
    pub findings: Vec<FindingRow>,
    /// What was not checked.
    pub not_checked: Vec<SkippedRow>,
    /// The connections that were made.
    pub connections: Vec<ConnectTestRow>,
}
