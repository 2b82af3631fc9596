//! The types that the supervisor and the readers of an apiserver exchange.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::apiserver::connection::error::LinkError;
use crate::apiserver::connection::link::Link;

/// The connection in use, and the results of its first read.
#[derive(Debug)]
pub struct Session {
    /// The connection for requests. It is cut when the server has failed or another one is preferred. Then all pending
    /// bodies end with an error, and the next session follows.
    pub link: Arc<Link>,
    /// The `metadata.resourceVersion` of a consistent read of Services immediately after connecting. A reader of
    /// Services that has not received a higher version continues; all other readers request the version of their own
    /// kind.
    pub revision: u64,
    /// The time when that read was sent.
    pub asked: tokio::time::Instant,
    pub number: u64,
}

/// A message of a reader to the supervisor. Sessions have their [`Session::number`].
#[derive(Debug)]
pub enum Report {
    /// A request failed, or a stream ended with an error.
    Failed {
        session: u64,
        error: LinkError,
    },
    /// The server has sent something: a list, an event, or a bookmark.
    Progress {
        session: u64,
    },
    /// The ready endpoints of `default/kubernetes`. If the set is empty, no address is forgotten.
    Endpoints(BTreeSet<SocketAddr>),
    /// The uid of the Service `default/kubernetes`, from a watch over the session in use. After the next start,
    /// remembered addresses must present the same uid.
    Cluster(String),
    ServiceCidrs(Vec<IpNet>),
}

/// The supervisor's interface for readers.
#[derive(Clone, Debug)]
pub struct Apiservers {
    /// The session in use; `None` while no apiserver is reachable.
    pub session: tokio::sync::watch::Receiver<Option<Arc<Session>>>,
    pub reports: tokio::sync::mpsc::Sender<Report>,
}
