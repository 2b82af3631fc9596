//! A connection to an apiserver for a command that sends its own requests, whether the daemon runs or not. Decides the
//! order of the addresses to try. Does not keep a session, and does not learn or remember addresses.
//!
//! Such a command is an ordinary process without registered sockets, so that nodelb translates a connection to a
//! balanced address. Therefore, addresses that the daemon knows to belong to an apiserver are tried first, and balanced
//! ones last. [`Connected::is_balanced`] contains the result.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::address::{Address, Server};
use super::credentials::{self, Credentials};
use super::settings::Settings;
use crate::apiserver::connection::connect::{self, Connector};
use crate::apiserver::connection::link::Link;
use crate::apiserver::credentials::authorities::Authorities;
use crate::apiserver::credentials::login::Login;
use crate::apiserver::endpoints::pool::learned_name;
use crate::apiserver::endpoints::preflight::{Attempt, probe};
use crate::apiserver::endpoints::state_file;
use crate::apiserver::endpoints::timeouts::PoolTimeouts;

/// The time limit for one address, from the resolver to the response.
const TIMEOUT: Duration = Duration::from_secs(4);

/// The timeout for a response.
pub const ANSWER: Duration = Duration::from_secs(15);

/// The daemon's knowledge about apiserver addresses, if it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressHints {
    /// The address in use, then others that work, without the balanced ones.
    pub direct: Vec<Address>,
    /// The addresses that nodelb balances.
    pub balanced: BTreeSet<Address>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSource {
    /// The daemon uses or could use the address.
    Daemon,
    /// `[[kubernetes.apiserver]]`
    Configured,
    /// The current context of the kubeconfig.
    Kubeconfig,
    /// The address has worked for the daemon before.
    Remembered,
}

impl fmt::Display for AddressSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Daemon => "reported by the daemon",
            Self::Configured => "configured",
            Self::Kubeconfig => "from the kubeconfig",
            Self::Remembered => "remembered",
        })
    }
}

/// A connection to a server that is ready.
#[derive(Debug)]
pub struct Connected {
    pub link: Arc<Link>,
    pub address: Address,
    pub address_source: AddressSource,
    /// Whether nodelb balances the address, so that the responses depend on the services under examination.
    pub is_balanced: bool,
    pub identity: String,
    pub failed: Vec<(Address, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The credentials cannot be used.
    Credentials(String),
    /// No address responds; empty if no address is known.
    Unreachable(Vec<(Address, String)>),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credentials(why) => f.write_str(why),
            Self::Unreachable(tried) if tried.is_empty() => f.write_str("no apiserver address is known"),
            Self::Unreachable(tried) => {
                let each: Vec<_> = tried.iter().map(|(address, why)| format!("{address}: {why}")).collect();
                write!(f, "no apiserver answers ({})", each.join("; "))
            }
        }
    }
}

/// Opens connections for commands.
#[derive(Debug)]
pub struct OneShotClient {
    settings: Settings,
    hints: AddressHints,
    connector: Connector,
    credentials: Arc<Credentials>,
}

impl OneShotClient {
    /// Reads no file and opens no connection yet.
    pub fn new(settings: Settings, hints: AddressHints) -> anyhow::Result<Self> {
        let connector =
            Connector::new(Arc::new(|_| Ok(())), connect::ConnectTimeouts::default(), settings.proxy.as_deref())?;
        let credentials = Arc::new(Credentials::new(&settings, credentials::CredentialTimeouts::default())?);
        Ok(Self { settings, hints, connector, credentials })
    }

    /// Connects to the first address that responds.
    ///
    /// # Errors
    /// The problem with the credentials, or all addresses that were tried, with their errors.
    pub async fn open(&self) -> Result<Connected, ConnectError> {
        let login = self.credentials.login().await.map_err(|error| ConnectError::Credentials(error.to_string()))?;
        let mut failed = Vec::new();
        for (server, address_source) in self.servers(&login).await {
            let (address, attempt) = (server.address.clone(), self.attempt(server, &login));
            match probe(attempt, TIMEOUT).await.0 {
                Ok(link) => {
                    let (is_balanced, identity) = (self.hints.balanced.contains(&address), login.identity.clone());
                    return Ok(Connected { link, address, address_source, is_balanced, identity, failed });
                }
                Err(error) => failed.push((address, error.to_string())),
            }
        }
        Err(ConnectError::Unreachable(failed))
    }

    fn attempt(&self, server: Server, login: &Arc<Login>) -> Attempt {
        Attempt {
            server,
            connector: self.connector.clone(),
            login: Arc::clone(login),
            credentials: Arc::clone(&self.credentials),
            cluster: None,
            last: Vec::new(),
            timeouts: PoolTimeouts::default(),
        }
    }

    /// Each address once, in the order of the attempts.
    async fn servers(&self, login: &Login) -> Vec<(Server, AddressSource)> {
        let remembered = remembered(&self.settings.state_directory, &login.authority).await;
        let configured = self.settings.servers.iter().cloned().map(|server| (server, AddressSource::Configured));
        let named = self.credentials.server().map(|server| (server, AddressSource::Kubeconfig));
        let known: Vec<_> = configured
            .chain(named)
            .chain(remembered.into_iter().map(|server| (server, AddressSource::Remembered)))
            .collect();
        in_order(known, &self.hints)
    }
}

/// The addresses that worked before in the same cluster.
async fn remembered(directory: &Path, authority: &Authorities) -> Vec<Server> {
    match state_file::load(directory, PoolTimeouts::duration(PoolTimeouts::default().load)).await {
        Some(state) if state.is_of(authority) => {
            state.apiservers.into_iter().map(|remembered| remembered.server).collect()
        }
        _ => Vec::new(),
    }
}

/// Puts the daemon's addresses first and balanced ones last. The name in the certificate is the known one for the
/// address, otherwise that of the first configured server, as in the daemon.
fn in_order(known: Vec<(Server, AddressSource)>, hints: &AddressHints) -> Vec<(Server, AddressSource)> {
    let servers: Vec<_> = known.iter().map(|(server, _)| server.clone()).collect();
    let learned = learned_name(&servers);
    let tip = |address: &Address| {
        let same = servers.iter().find(|server| server.address == *address).cloned();
        let learned = || Server { address: address.clone(), tls_server_name: Some(Arc::clone(&learned)) };
        (same.unwrap_or_else(learned), AddressSource::Daemon)
    };
    let mut ordered: Vec<(Server, AddressSource)> = Vec::new();
    for (server, address_source) in hints.direct.iter().map(tip).chain(known) {
        if !ordered.iter().any(|(known, _)| known.address == server.address) {
            ordered.push((server, address_source));
        }
    }
    ordered.sort_by_key(|(server, _)| hints.balanced.contains(&server.address));
    ordered
}

#[cfg(test)]
#[path = "tests/one_shot.rs"]
mod tests;
