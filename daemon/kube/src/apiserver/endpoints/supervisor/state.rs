//! What the supervisor knows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;
use nodelb_core::change::Change;
use nodelb_core::model::addr::Addr;
use nodelb_core::model::moment::Moment;
use nodelb_host::clock::Clock;
use tokio::sync::{mpsc, watch};

use super::journal::Journal;
use super::tasks::Tasks;
use crate::apiserver::address::{Address, Server};
use crate::apiserver::connection::connect::Connector;
use crate::apiserver::connection::error::LinkError;
use crate::apiserver::credentials::Credentials;
use crate::apiserver::credentials::login::Login;
use crate::apiserver::endpoints::pool::{Pool, PoolReport};
use crate::apiserver::endpoints::state_file::Saver;
use crate::apiserver::endpoints::timeouts::PoolTimeouts;
use crate::apiserver::session::Session;
use crate::apiserver::settings::Settings;

pub type IsFrontend = Arc<dyn Fn(SocketAddr) -> bool + Send + Sync>;

/// The session in use, and its recent errors.
pub(super) struct Current {
    pub(super) session: Arc<Session>,
    pub(super) server: Server,
    pub(super) login: Arc<Login>,
    /// The number of consecutive requests that the server failed to answer.
    pub(super) complaints: u32,
    /// The number of requests that the server rejected within a short time, and the time of the latest one.
    pub(super) objections: (u32, Moment),
    /// The server's rejection of the login, while the supervisor checks for a new one.
    pub(super) unauthorized: Option<LinkError>,
}

pub(super) struct Supervisor {
    pub(super) timeouts: PoolTimeouts,
    pub(super) clock: Clock,
    pub(super) unix: fn() -> u64,
    pub(super) seed: u64,
    pub(super) settings: Settings,
    pub(super) connector: Connector,
    pub(super) credentials: Arc<Credentials>,
    pub(super) changes: mpsc::Sender<Vec<Change>>,
    pub(super) is_frontend: IsFrontend,
    /// The backends of `default/kubernetes` in the maps at the start.
    pub(super) in_maps: Vec<SocketAddr>,
    /// How the wall clock was last set.
    pub(super) set: i64,
    /// The configured service CIDRs and those of the cluster.
    pub(super) cidrs: Vec<IpNet>,
    pub(super) saver: Saver,
    pub(super) pool: Pool,
    pub(super) login: Option<Arc<Login>>,
    /// The time of the next check of the credentials.
    pub(super) look_at: Moment,
    pub(super) current: Option<Current>,
    pub(super) sessions: u64,
    pub(super) resolved: BTreeMap<Address, Vec<SocketAddr>>,
    /// The latest nonempty list of addresses from the cluster.
    pub(super) listed: BTreeSet<SocketAddr>,
    /// The listed addresses that must not be used as long as they are addresses of services.
    pub(super) excluded: BTreeSet<SocketAddr>,
    /// The listed addresses that are not used and have been logged.
    pub(super) left_out: BTreeSet<SocketAddr>,
    pub(super) tasks: Tasks,
    pub(super) journal: Journal,
    /// The addresses that were last sent to the owner task.
    pub(super) announced: Option<BTreeSet<(Addr, u16)>>,
    pub(super) announce_at: Option<Moment>,
    pub(super) last_response: Option<Moment>,
    pub(super) problem: Option<String>,
    /// Why the session in use still has the previous credentials, and since when.
    pub(super) not_renewed: Option<(Moment, String)>,
    pub(super) session_in: watch::Sender<Option<Arc<Session>>>,
    pub(super) report_in: watch::Sender<Arc<PoolReport>>,
}
