//! What the witnesses say: everything the findings are drawn from, as plain values. Each witness may be missing, and each of
//! its answers too; that is a fact like any other. Owns no way to any of them; [`gather`](super::gather) fills it in.

use std::collections::BTreeMap;
use std::time::Duration;

use nodelb_core::model::service::ServiceName;
use nodelb_kube::api::seen::{Event, Pod, Service, Slice};
use nodelb_kube::null::null_is_default;
use serde::Deserialize;
use serde_json::Value;

/// All of it.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Which service is asked about.
    pub service: ServiceName,
    /// Seconds since 1970.
    pub now: u64,
    /// The name of this node: what policies and hints are measured against.
    pub node: String,
    /// The daemon on this node.
    pub daemon: Witness<Daemon>,
    /// An apiserver.
    pub cluster: Witness<Cluster>,
    /// Connections made from here; empty when none were to be made.
    pub dials: Vec<Dial>,
    /// What the resolver of this host says about the service's DNS name.
    pub dns: Option<Dns>,
}

/// Somebody who was asked.
#[derive(Clone, Debug)]
pub enum Witness<T> {
    /// What they said.
    Spoke(T),
    /// They should have answered, and why they have not.
    Silent(String),
    /// They have nothing to do with it.
    NotAsked,
}

impl<T> Witness<T> {
    /// What they said, if they did.
    pub fn told(&self) -> Option<&T> {
        match self {
            Self::Spoke(told) => Some(told),
            Self::Silent(_) | Self::NotAsked => None,
        }
    }
}

/// One answer of an apiserver.
pub type Answer<T> = Result<T, Denial>;

/// An answer that was not given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// What was wanted, as RBAC names it: `list pods`.
    pub question: &'static str,
    /// Why not.
    pub why: String,
    /// Whether it is a matter of permission.
    pub is_forbidden: bool,
}

/// What an apiserver says.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Which one, and how it was found.
    pub via: String,
    /// Who asked.
    pub identity: String,
    /// Whether the connection went through the load balancing of this node.
    pub is_balanced: bool,
    /// Addresses that did not answer, each with the reason.
    pub failed: Vec<String>,
    /// The Service.
    pub service: Answer<Option<Service>>,
    /// Other Services of the namespace, when there is no such Service.
    pub names: Vec<String>,
    /// Its EndpointSlices.
    pub slices: Answer<Vec<Slice>>,
    /// The Pods its selector matches; `None` without a selector.
    pub pods: Option<Answer<Vec<Pod>>>,
    /// Pods of the namespace, when the selector matches none.
    pub others: Vec<Pod>,
    /// Events about the Service.
    pub events: Answer<Vec<Event>>,
    /// Whether there is a Node of this node's name.
    pub has_node: Answer<bool>,
}

/// What the daemon says, in the words of its admin API. A route that it does not have is an empty answer.
#[derive(Clone, Debug, Default)]
pub struct Daemon {
    /// `/readyz`
    pub checks: Vec<CheckRow>,
    /// `/services?service=`
    pub services: Vec<ServiceRow>,
    /// Names of all services, when there is no such service.
    pub names: Vec<String>,
    /// `/frontends?service=`
    pub frontends: Vec<FrontendRow>,
    /// `/frontends?address=` of those in error: who else claims them.
    pub rivals: Vec<FrontendRow>,
    /// `/backends?service=`
    pub backends: Vec<BackendRow>,
    /// `/maps`, of the addresses of the service; `None` when the maps could not be read.
    pub maps: Option<Maps>,
    /// `/sources`
    pub sources: Vec<SourceRow>,
    /// `/apiservers`, the addresses.
    pub apiservers: Vec<ApiserverRow>,
    /// `/apiservers`, the session in use.
    pub session: Option<SessionRow>,
    /// `/diff`: of the service, and of the hooks; `None` where there is no such route.
    pub differences: Option<Vec<Value>>,
    /// `/trace?to=` of the first frontends, each the row of its verdict.
    pub traces: Vec<Value>,
    /// `/history?service=`, latest last; `None` where there is no such route.
    pub history: Option<Vec<Value>>,
}

/// A row of `/readyz`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CheckRow {
    /// `canary`, `links`.
    #[serde(deserialize_with = "null_is_default")]
    pub check: String,
    /// `ok` or `failed`.
    #[serde(deserialize_with = "null_is_default")]
    pub result: String,
    /// Why.
    #[serde(deserialize_with = "null_is_default")]
    pub detail: String,
}

/// A row of `/services`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServiceRow {
    /// `kubernetes` or `files`.
    #[serde(deserialize_with = "null_is_default")]
    pub source: String,
    /// Which file or object.
    #[serde(deserialize_with = "null_is_default")]
    pub origin: String,
    /// `Cluster` or `Local`.
    #[serde(deserialize_with = "null_is_default")]
    pub internal_policy: String,
    /// Its name.
    #[serde(deserialize_with = "null_is_default")]
    pub service: String,
    /// The worst status of its frontends.
    #[serde(deserialize_with = "null_is_default")]
    pub status: String,
    /// What is wrong.
    pub error: Option<String>,
}

/// A row of `/frontends`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FrontendRow {
    /// `198.51.100.10:80/TCP`
    #[serde(deserialize_with = "null_is_default")]
    pub address: String,
    /// `ClusterIP`
    #[serde(rename = "type", deserialize_with = "null_is_default")]
    pub kind: String,
    /// Whose.
    #[serde(deserialize_with = "null_is_default")]
    pub service: String,
    /// Whom a client on this node reaches.
    #[serde(deserialize_with = "null_is_default")]
    pub backends: Vec<String>,
    /// `Local`, `ExternalLocal`, …
    #[serde(deserialize_with = "null_is_default")]
    pub flags: Vec<String>,
    /// `Done`
    #[serde(deserialize_with = "null_is_default")]
    pub status: String,
    /// Seconds.
    #[serde(deserialize_with = "null_is_default")]
    pub since: f64,
    /// What is wrong.
    pub error: Option<String>,
}

/// A row of `/backends`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BackendRow {
    /// `192.0.2.1:80/TCP`
    #[serde(deserialize_with = "null_is_default")]
    pub address: String,
    /// `Active`
    #[serde(deserialize_with = "null_is_default")]
    pub state: String,
    /// Where it runs.
    #[serde(deserialize_with = "null_is_default")]
    pub node: String,
    /// `Selected`
    #[serde(deserialize_with = "null_is_default")]
    pub choice: String,
    /// Why it is not.
    pub reason: Option<String>,
}

/// What the kernel holds for the addresses of the service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maps {
    /// The frontends that are there: address and the service port it leads to (`shop/web:http/TCP/IPv4`).
    pub frontends: BTreeMap<String, String>,
    /// The backends that are there, by service port and view.
    pub slots: BTreeMap<(String, String), Vec<String>>,
    /// Where NodePorts are answered.
    pub node_addresses: Vec<String>,
}

/// A row of `/sources`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SourceRow {
    /// `kubernetes` or `files`.
    #[serde(deserialize_with = "null_is_default")]
    pub source: String,
    /// Which file, or which kind of objects.
    #[serde(deserialize_with = "null_is_default")]
    pub path: String,
    /// `Ok`, `LastGood`, `Error`.
    #[serde(deserialize_with = "null_is_default")]
    pub state: String,
    /// Seconds.
    #[serde(deserialize_with = "null_is_default")]
    pub since: f64,
    /// What is wrong.
    #[serde(deserialize_with = "null_is_default")]
    pub problems: Vec<String>,
}

/// A row of `/apiservers`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ApiserverRow {
    /// Where.
    #[serde(deserialize_with = "null_is_default")]
    pub address: String,
    /// `Healthy`
    #[serde(deserialize_with = "null_is_default")]
    pub state: String,
    /// Whether it is the one in use.
    #[serde(deserialize_with = "null_is_default")]
    pub in_use: bool,
    /// What was last wrong.
    pub error: Option<String>,
}

/// The session in use.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SessionRow {
    /// With which address; `None` while there is none.
    pub apiserver: Option<String>,
    /// Seconds.
    pub last_heard: Option<f64>,
    /// What keeps nodelb from trying at all.
    pub problem: Option<String>,
}

/// One connection made from here, or one that cannot prove anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// `198.51.100.10:80/TCP`
    pub to: String,
    /// Whether it is a backend, not a frontend.
    pub is_backend: bool,
    /// What it came to.
    pub outcome: Outcome,
}

/// What a connection came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was accepted after so long.
    Accepted(Duration),
    /// It was not, after so long.
    Failed(String, Duration),
    /// A protocol without connections: whether anybody is there cannot be told.
    Unprovable,
}

/// What the resolver of this host says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// `web.shop.svc.cluster.local`
    pub name: String,
    /// Its addresses, or why there are none.
    pub addresses: Result<Vec<String>, String>,
    /// The service that nodelb serves at one of them, if it is another one.
    pub another: Option<String>,
}
