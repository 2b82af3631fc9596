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

/// The kind of a finding. The comments are in the documents, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::Display, strum::EnumIter, strum::EnumMessage)]
#[strum(serialize_all = "kebab-case")]
pub enum FindingKind {
    /// The maps are in memory, and no connection is translated.
    NotTranslated,
    /// The BPF programs do not apply to the processes of the node.
    HooksNotInEffect,
    /// This command is not in the cgroup with the processes that use services.
    OutsideCgroup,
    /// Programs of other software run at the same hooks, and may translate the service.
    HooksShared,
    /// The reconcile loop of the daemon is stuck.
    LoopStuck,
    /// The daemon or this command lacks a permission.
    PermissionMissing,
    /// The daemon has no API server.
    ApiserverAway,
    /// A source that existed before is not configured, or has not synced since nodelb started.
    SourceAbsent,
    /// The services directory cannot be read, or a watch does not work.
    SourceFailing,
    /// The daemon has not read everything since its start.
    NotSynced,
    /// The file with the service is not served, or not in its present form.
    FileNotServed,
    /// Another place of a source has a problem, and may describe the service.
    SourceProblem,
    /// No witness knows a service of this name.
    NoSuchService,
    /// The service is headless, or of type `ExternalName`.
    NotForProxies,
    /// Two sources define the service, and one of the definitions is not used.
    DefinedTwice,
    /// Another service owns an address.
    AddressConflict,
    /// nodelb refuses to serve an address.
    AddressRefused,
    /// The kernel maps do not accept an entry.
    ReconcileFailing,
    /// The kernel does not have an address yet.
    Pending,
    /// Connections get backends from before the start of nodelb, and the service has others now.
    Kept,
    /// Backends do not answer clients outside the node.
    Unanswered,
    /// The maps do not contain what the daemon wrote.
    KernelDiffers,
    /// A process of the node has bound a NodePort of the service.
    NodePortBound,
    /// No pod has the labels of the selector.
    SelectorMatchesNothing,
    /// The service has no selector, so only its author fills the slices.
    NoSelector,
    /// The service names a port that its slices do not have.
    PortMismatch,
    /// There are slices, but their endpoints were removed.
    SliceEmptied,
    /// No proxy uses slices of the service, because of their label or type.
    SliceLeftOut,
    /// There is no slice at all.
    SliceMissing,
    /// Pods and slices disagree.
    SliceNotUpdated,
    /// Endpoints are not ready.
    NotReady,
    /// A traffic policy is Local, and this node has no backend.
    NoLocalBackend,
    /// Clients outside the node reach no backend, or not all of them.
    NoOutsideBackend,
    /// Backends are refused, in maintenance, or failed nodelb's health checks.
    BackendsUnusable,
    /// Every backend failed its health checks, and all of them are used as a last resort.
    LastResort,
    /// Some backends failed their health checks.
    BackendsQuarantined,
    /// The operator drains some backends.
    BackendsDrained,
    /// The Service asks for health checks that nodelb cannot make.
    HealthCheckInvalid,
    /// The Service asks for health checks, and the daemon makes none for Services of Kubernetes.
    HealthChecksOff,
    /// The service has no backends, whatever the reason.
    NoBackends,
    /// A backend does not answer.
    BackendUnreachable,
    /// Packets of clients outside the node are not translated, or do not arrive.
    PacketPath,
    /// Backends are held although the source removed them.
    Held,
    /// The daemon's table differs from the cluster.
    MemoryDiffers,
    /// The load balancer does not exist yet.
    LoadBalancerPending,
    /// Load balancers get no answer to their health checks.
    HealthCheckPortClosed,
    /// An address does not answer, and not because of a backend.
    FrontendFails,
    /// nodelb refuses connections to an address, because it has no backend.
    FrontendRefused,
    /// Connections to an address fail as those to one of its backends do.
    FrontendAffected,
    /// The daemon reports that it is not ready.
    DaemonNotReady,
    /// The daemon does not answer.
    DaemonSilent,
    /// No API server answers this command.
    ApiserverSilent,
    /// A Kubernetes Event with its explanation.
    Event,
    /// The service's name in DNS.
    DnsName,
    /// The number of endpoints in each condition.
    Endpoints,
    /// nodelb itself balances the API server that this command asked.
    ApiserverBalanced,
    /// The source ranges of the service do not contain this host.
    NotAdmitted,
    /// Addresses that answer.
    Works,
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
