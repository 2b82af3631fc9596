//! One finding: what is the matter, how that is known, what to do. Owns the order in which findings are told: the graver
//! first, and of equally grave ones the cause before what it leads to.

use serde::{Serialize, Serializer};

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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

/// The kinds of findings, causes before what they lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A source that was there before is not configured, or has not told all it has since nodelb started.
    SourceAbsent,
    /// Nobody knows a service of this name.
    NoSuchService,
    /// `ExternalName`, headless.
    NotForProxies,
    /// Somebody may not read what is needed.
    PermissionMissing,
    /// Hooks are not where the processes are.
    HooksNotInEffect,
    /// Another service owns an address.
    AddressConflict,
    /// nodelb does not serve an address.
    AddressRefused,
    /// The kernel does not hold what the daemon wants it to.
    KernelDiffers,
    /// No pod has the labels.
    SelectorMatchesNothing,
    /// Nobody but its author fills the slices.
    NoSelector,
    /// The service asks for a port that its slices do not have.
    PortMismatch,
    /// There are slices, and somebody took their endpoints away.
    SliceEmptied,
    /// There is no slice at all.
    SliceMissing,
    /// Pods and slices disagree.
    SliceNotUpdated,
    /// Endpoints are not ready.
    NotReady,
    /// Policy Local, and no backend on this node.
    NoLocalBackend,
    /// Every backend failed nodelb's checks, or is refused.
    BackendsUnusable,
    /// Backends are kept although the source emptied them.
    Held,
    /// The daemon has lost its apiservers.
    ApiserverAway,
    /// What the daemon knows is not what the cluster says.
    MemoryDiffers,
    /// A load balancer is awaited.
    LoadBalancerPending,
    /// A backend does not answer.
    BackendUnreachable,
    /// A frontend does not answer.
    FrontendFails,
    /// The service has no backends, whatever the reason.
    NoBackends,
    /// A source has a problem.
    SourceProblem,
    /// The daemon says it is not ready.
    DaemonNotReady,
    /// The daemon does not answer.
    DaemonSilent,
    /// No apiserver answers this command.
    ApiserverSilent,
    /// A question was not answered.
    Unanswered,
    /// A Kubernetes Event, explained.
    Event,
    /// The service's name in DNS.
    DnsName,
    /// Endpoints by condition.
    Endpoints,
    /// What connections cannot prove.
    Unprovable,
    /// Everything that was looked at is as it should be.
    Works,
}

/// What is the matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How grave.
    pub severity: Severity,
    /// Which.
    pub kind: Kind,
    /// In one sentence.
    pub what: String,
    /// How that is known.
    pub evidence: Vec<String>,
    /// What to do; empty where nothing is to be done.
    #[serde(serialize_with = "none_if_empty")]
    pub remedy: String,
}

fn none_if_empty<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    Some(text).filter(|text| !text.is_empty()).serialize(serializer)
}

impl Finding {
    /// One without evidence and remedy.
    pub(super) fn new(severity: Severity, kind: Kind, what: impl Into<String>) -> Self {
        Self { severity, kind, what: what.into(), evidence: Vec::new(), remedy: String::new() }
    }

    /// The same, known from these.
    #[must_use]
    pub(super) fn seen(mut self, evidence: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.evidence.extend(evidence.into_iter().map(Into::into));
        self
    }

    /// The same, with what to do.
    #[must_use]
    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }
}

/// Puts the most likely cause first.
pub(super) fn in_order(findings: &mut [Finding]) {
    findings.sort_by_key(|finding| (std::cmp::Reverse(finding.severity), finding.kind));
}
