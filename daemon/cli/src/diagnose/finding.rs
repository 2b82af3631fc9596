//! One finding: the problem, the evidence, the remedy. Owns the order of findings: the most severe first, and of
//! equally severe ones the cause before its consequences.

use serde::{Deserialize, Serialize, Serializer};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Info,
    /// Something is wrong, or will be.
    Warning,
    /// Connections fail because of it.
    Critical,
}

/// The kinds of findings, each cause before its consequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A source that existed before is not configured, or has not synced since nodelb started.
    SourceAbsent,
    /// No witness knows a service of this name.
    NoSuchService,
    /// The service is headless, or of type `ExternalName`.
    NotForProxies,
    /// The daemon or this command lacks a permission.
    PermissionMissing,
    /// The hooks are not attached where the processes run.
    HooksNotInEffect,
    /// Another service owns an address.
    AddressConflict,
    /// nodelb does not serve an address.
    AddressRefused,
    /// The maps do not contain what the daemon wants.
    KernelDiffers,
    /// No pod has the labels of the selector.
    SelectorMatchesNothing,
    /// The service has no selector, so only its author fills the slices.
    NoSelector,
    /// The service names a port that its slices do not have.
    PortMismatch,
    /// There are slices, but their endpoints were removed.
    SliceEmptied,
    /// There is no slice at all.
    SliceMissing,
    /// Pods and slices disagree.
    SliceNotUpdated,
    /// Endpoints are not ready.
    NotReady,
    /// The policy is Local, and this node has no backend.
    NoLocalBackend,
    /// Every backend failed nodelb's health checks, or is refused.
    BackendsUnusable,
    /// Packets of clients outside the node are not translated, or do not arrive.
    PacketPath,
    /// Backends are held although the source removed them.
    Held,
    /// The daemon has lost its apiservers.
    ApiserverAway,
    /// The daemon's table differs from the cluster.
    MemoryDiffers,
    /// The load balancer does not exist yet.
    LoadBalancerPending,
    /// A backend does not answer.
    BackendUnreachable,
    /// A frontend does not answer.
    FrontendFails,
    /// The service has no backends, whatever the reason.
    NoBackends,
    /// A source has a problem.
    SourceProblem,
    /// The daemon reports that it is not ready.
    DaemonNotReady,
    /// The daemon does not answer.
    DaemonSilent,
    /// No apiserver answers this command.
    ApiserverSilent,
    /// A request was not answered.
    Unanswered,
    /// A Kubernetes Event with its explanation.
    Event,
    /// The service's name in DNS.
    DnsName,
    /// The number of endpoints in each condition.
    Endpoints,
    /// A protocol for which connections prove nothing.
    Unprovable,
    /// Everything that was checked is as it should be.
    Works,
}

/// A problem or an observation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The kind.
    pub kind: Kind,
    /// The finding in one sentence.
    pub what: String,
    /// The evidence.
    pub evidence: Vec<String>,
    /// The remedy; empty if none is needed.
    #[serde(serialize_with = "none_if_empty")]
    pub remedy: String,
}

fn none_if_empty<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    Some(text).filter(|text| !text.is_empty()).serialize(serializer)
}

impl Finding {
    /// Creates a finding without evidence and remedy.
    pub(super) fn new(severity: Severity, kind: Kind, what: impl Into<String>) -> Self {
        Self { severity, kind, what: what.into(), evidence: Vec::new(), remedy: String::new() }
    }

    /// Sets the evidence.
    #[must_use]
    pub(super) fn evidence(mut self, evidence: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.evidence.extend(evidence.into_iter().map(Into::into));
        self
    }

    /// Sets the remedy.
    #[must_use]
    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }
}

/// Sorts the findings, the most likely cause first.
pub(super) fn in_order(findings: &mut [Finding]) {
    findings.sort_by_key(|finding| (std::cmp::Reverse(finding.severity), finding.kind));
}
