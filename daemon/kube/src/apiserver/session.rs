//! What the supervisor and the readers of an apiserver say to each other.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;

use super::address::Server;
use super::error::LinkError;
use super::link::Link;

/// How Kubernetes is reached, as the configuration says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// In the order of preference. Never changed by anything learned.
    pub servers: Vec<Server>,
    /// Where its cluster's server and credentials come from; `None` without a kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// A bearer token, where there is no kubeconfig.
    pub token_file: Option<PathBuf>,
    /// The certificate authority, where there is no kubeconfig.
    pub ca_file: Option<PathBuf>,
    /// An HTTP proxy (`http://HOST:PORT`) that every connection goes through; environment variables are never consulted.
    pub proxy: Option<String>,
    /// Addresses in these are never learned as an apiserver's.
    pub service_cidrs: Vec<IpNet>,
    /// Where what was learned outlives a reboot.
    pub state_directory: PathBuf,
}

/// The connection in use, and what was found out when it was opened.
#[derive(Debug)]
pub struct Session {
    /// Over which requests go. Cut when the server is declared failed or another one is preferred: then every body that
    /// is being read ends with an error, and the next session follows.
    pub link: Link,
    /// The `metadata.resourceVersion` of a consistent read of Services right after connecting. A reader of Services
    /// that has heard no greater one goes on; any other one asks for its own kind.
    pub revision: u64,
    /// When that read was asked for.
    pub asked: tokio::time::Instant,
    /// Counts sessions.
    pub number: u64,
}

/// What the reader of a session tells the supervisor.
#[derive(Debug)]
pub enum Report {
    /// A request failed, or a stream broke, over this session.
    Failed {
        /// [`Session::number`].
        session: u64,
        /// How.
        error: LinkError,
    },
    /// Something arrived over this session: a list, an event, a bookmark.
    Progress {
        /// [`Session::number`].
        session: u64,
    },
    /// What the endpoints of `default/kubernetes` are now, ready ones only; may be empty, which forgets nothing.
    Endpoints(BTreeSet<SocketAddr>),
    /// The uid of the Service `default/kubernetes`, as a watch over the session in use tells: what remembered addresses
    /// must show after the next start.
    Cluster(String),
    /// The cluster's service CIDRs, as the cluster says.
    ServiceCidrs(Vec<IpNet>),
}

/// What a reader needs of the supervisor.
#[derive(Clone, Debug)]
pub struct Apiservers {
    /// The session in use; `None` while no apiserver can be reached.
    pub session: tokio::sync::watch::Receiver<Option<Arc<Session>>>,
    /// To the supervisor.
    pub reports: tokio::sync::mpsc::Sender<Report>,
}
