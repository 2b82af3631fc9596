//! A connection to an apiserver for a command that sends its own requests, whether the daemon runs or not. Decides in
//! which order addresses are tried. Does not keep a session, and does not learn or remember addresses.
//!
//! Such a command is an ordinary process without registered sockets, so that nodelb translates a connection to a
//! balanced address. Therefore, addresses that the daemon knows to belong to an apiserver are tried first, and balanced
//! ones last. [`Visit::is_balanced`] contains the result.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::address::{Address, Server};
use super::authorities::Authorities;
use super::credentials::{self, Credentials};
use super::dial::{self, Dialer};
use super::link::Link;
use super::login::Login;
use super::pool::learned_name;
use super::preflight::{Attempt, greet};
use super::remember;
use super::session::Settings;
use super::timing::Timing;

/// The time limit for one address, from the resolver to the response.
const PATIENCE: Duration = Duration::from_secs(4);

/// The timeout for a response.
pub const ANSWER: Duration = Duration::from_secs(15);

/// The daemon's knowledge about apiserver addresses, if it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tips {
    /// The address in use, then others that work, without the balanced ones.
    pub direct: Vec<Address>,
    /// The addresses that nodelb balances.
    pub balanced: BTreeSet<Address>,
}

/// The source of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The daemon uses or could use the address.
    Daemon,
    /// `[[kubernetes.apiserver]]`
    Configured,
    /// The current context of the kubeconfig.
    Kubeconfig,
    /// The address has worked for the daemon before.
    Remembered,
}

impl fmt::Display for Whence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Daemon => "told by the daemon",
            Self::Configured => "configured",
            Self::Kubeconfig => "from the kubeconfig",
            Self::Remembered => "remembered",
        })
    }
}

/// A connection to a server that is ready.
#[derive(Debug)]
pub struct Visit {
    /// The connection.
    pub link: Arc<Link>,
    /// The address of the server.
    pub address: Address,
    /// The source of the address.
    pub whence: Whence,
    /// Whether nodelb balances the address, so that the responses depend on the services under examination.
    pub is_balanced: bool,
    /// The identity, for messages.
    pub identity: String,
    /// The addresses that failed before, with their errors.
    pub failed: Vec<(Address, String)>,
}

/// The reason why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nobody {
    /// The credentials cannot be used.
    Credentials(String),
    /// No address responds; empty if no address is known.
    Silent(Vec<(Address, String)>),
}

impl fmt::Display for Nobody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credentials(why) => f.write_str(why),
            Self::Silent(tried) if tried.is_empty() => f.write_str("no apiserver address is known"),
            Self::Silent(tried) => {
                let each: Vec<_> = tried.iter().map(|(address, why)| format!("{address}: {why}")).collect();
                write!(f, "no apiserver answers ({})", each.join("; "))
            }
        }
    }
}

/// Opens connections for commands.
#[derive(Debug)]
pub struct Visitor {
    settings: Settings,
    tips: Tips,
    dialer: Dialer,
    credentials: Arc<Credentials>,
}

impl Visitor {
    /// Reads no file and opens no connection yet.
    ///
    /// # Errors
    /// The settings contain no credentials, or an invalid proxy.
    pub fn new(settings: Settings, tips: Tips) -> anyhow::Result<Self> {
        let dialer = Dialer::new(Arc::new(|_| Ok(())), dial::Timing::default(), settings.proxy.as_deref())?;
        let credentials = Arc::new(Credentials::new(&settings, credentials::Timing::default())?);
        Ok(Self { settings, tips, dialer, credentials })
    }

    /// Connects to the first address that responds.
    ///
    /// # Errors
    /// The problem with the credentials, or all addresses that were tried, with their errors.
    pub async fn open(&self) -> Result<Visit, Nobody> {
        let login = self.credentials.login().await.map_err(|error| Nobody::Credentials(error.to_string()))?;
        let mut failed = Vec::new();
        for (server, whence) in self.servers(&login).await {
            let (address, attempt) = (server.address.clone(), self.attempt(server, &login));
            match greet(attempt, PATIENCE).await.0 {
                Ok(link) => {
                    let (is_balanced, identity) = (self.tips.balanced.contains(&address), login.identity.clone());
                    return Ok(Visit { link, address, whence, is_balanced, identity, failed });
                }
                Err(error) => failed.push((address, error.to_string())),
            }
        }
        Err(Nobody::Silent(failed))
    }

    fn attempt(&self, server: Server, login: &Arc<Login>) -> Attempt {
        Attempt {
            server,
            dialer: self.dialer.clone(),
            login: Arc::clone(login),
            credentials: Arc::clone(&self.credentials),
            cluster: None,
            last: Vec::new(),
            timing: Timing::default(),
        }
    }

    /// Each address once, in the order in which they are tried.
    async fn servers(&self, login: &Login) -> Vec<(Server, Whence)> {
        let remembered = remembered(self.settings.state_directory.clone(), &login.authority).await;
        let configured = self.settings.servers.iter().cloned().map(|server| (server, Whence::Configured));
        let named = self.credentials.server().map(|server| (server, Whence::Kubeconfig));
        let known: Vec<_> =
            configured.chain(named).chain(remembered.into_iter().map(|server| (server, Whence::Remembered))).collect();
        in_order(known, &self.tips)
    }
}

/// The addresses that worked before in the same cluster.
async fn remembered(directory: PathBuf, authority: &Authorities) -> Vec<Server> {
    match remember::load_within(directory, Timing::duration(Timing::default().load)).await {
        Ok(Some(memory)) if memory.is_of(authority) => {
            memory.apiservers.into_iter().map(|remembered| remembered.server).collect()
        }
        _ => Vec::new(),
    }
}

/// Puts the daemon's addresses first and balanced ones last. The name in the certificate is the known one for the
/// address, otherwise that of the first configured server, as in the daemon.
fn in_order(known: Vec<(Server, Whence)>, tips: &Tips) -> Vec<(Server, Whence)> {
    let servers: Vec<_> = known.iter().map(|(server, _)| server.clone()).collect();
    let learned = learned_name(&servers);
    let tip = |address: &Address| {
        let same = servers.iter().find(|server| server.address == *address).cloned();
        let learned = || Server { address: address.clone(), tls_server_name: Some(Arc::clone(&learned)) };
        (same.unwrap_or_else(learned), Whence::Daemon)
    };
    let mut ordered: Vec<(Server, Whence)> = Vec::new();
    for (server, whence) in tips.direct.iter().map(tip).chain(known) {
        if !ordered.iter().any(|(known, _)| known.address == server.address) {
            ordered.push((server, whence));
        }
    }
    ordered.sort_by_key(|(server, _)| tips.balanced.contains(&server.address));
    ordered
}

#[cfg(test)]
#[path = "tests/visit.rs"]
mod tests;
