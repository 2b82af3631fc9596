//! A connection to an apiserver for a command that sends its own requests, whether the daemon runs or not. Decides the
//! order of the addresses to try. Does not keep a session, and does not learn or remember addresses.
//!
//! Such a command is an ordinary process without registered sockets, so that nodelb translates a connection to a
//! balanced address. Therefore, addresses that the daemon knows to belong to an apiserver are tried first, and balanced
//! ones last. [`Connected::is_balanced`] contains the result.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::address::{Address, Server};
use super::credentials::{CredentialTimeouts, Credentials, CredentialsError};
use super::settings::Settings;
use crate::apiserver::connection::connect::{ConnectTimeouts, Connector};
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
pub enum AddressSource {
    /// The daemon uses or could use the address.
    #[strum(to_string = "reported by the daemon")]
    Daemon,
    /// `[[kubernetes.apiserver]]`
    #[strum(to_string = "configured")]
    Configured,
    /// The current context of the kubeconfig.
    #[strum(to_string = "from the kubeconfig")]
    Kubeconfig,
    /// The address has worked for the daemon before.
    #[strum(to_string = "remembered")]
    Remembered,
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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The credentials or the proxy cannot be used.
    #[error("{0}")]
    Credentials(String),
    /// No address responds; empty if no address is known.
    #[error("{}", unreachable(.0))]
    Unreachable(Vec<(Address, String)>),
}

fn unreachable(tried: &[(Address, String)]) -> String {
    if tried.is_empty() {
        return "no apiserver address is known".into();
    }
    let each: Vec<_> = tried.iter().map(|(address, why)| format!("{address}: {why}")).collect();
    format!("no apiserver answers ({})", each.join("; "))
}

/// Connects to the first address that responds.
///
/// # Errors
/// The problem with the credentials, or all addresses that were tried, with their errors.
pub async fn connect(settings: &Settings, hints: &AddressHints) -> Result<Connected, ConnectError> {
    let unusable = |error: CredentialsError| ConnectError::Credentials(error.to_string());
    let connector = Connector::new(Arc::new(|_| Ok(())), ConnectTimeouts::default(), settings.proxy.as_deref())
        .map_err(|error| ConnectError::Credentials(error.to_string()))?;
    let credentials = Arc::new(Credentials::new(settings, CredentialTimeouts::default()).map_err(unusable)?);
    let login = credentials.login().await.map_err(unusable)?;
    let mut failed = Vec::new();
    for (server, address_source) in servers(settings, credentials.server(), &login, hints).await {
        let address = server.address.clone();
        let attempt = Attempt {
            server,
            connector: connector.clone(),
            login: Arc::clone(&login),
            credentials: Arc::clone(&credentials),
            cluster: None,
            last: Vec::new(),
            timeouts: PoolTimeouts::default(),
        };
        match probe(attempt, TIMEOUT).await.0 {
            Ok(link) => {
                let (is_balanced, identity) = (hints.balanced.contains(&address), login.identity.clone());
                return Ok(Connected { link, address, address_source, is_balanced, identity, failed });
            }
            Err(error) => failed.push((address, error.to_string())),
        }
    }
    Err(ConnectError::Unreachable(failed))
}

/// Each address once, in the order of the attempts. `named` is the server in the kubeconfig.
async fn servers(
    settings: &Settings,
    named: Option<Server>,
    login: &Login,
    hints: &AddressHints,
) -> Vec<(Server, AddressSource)> {
    let remembered = remembered(&settings.state_directory, &login.authority).await;
    let configured = settings.servers.iter().cloned().map(|server| (server, AddressSource::Configured));
    let named = named.map(|server| (server, AddressSource::Kubeconfig));
    let remembered = remembered.into_iter().map(|server| (server, AddressSource::Remembered));
    in_order(configured.chain(named).chain(remembered).collect(), hints)
}

/// The addresses that worked before in the same cluster.
async fn remembered(directory: &Path, authority: &Authorities) -> Vec<Server> {
    let limit = Duration::from_millis(PoolTimeouts::default().load);
    match state_file::begin(directory).within(limit).await.flatten() {
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
