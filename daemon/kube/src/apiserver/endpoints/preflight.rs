//! Opens a connection for a session: tries each address of the server, and sends one consistent read over the
//! connection, which yields the cluster's identity and current version.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, ListParams, ObjectList};
use nodelb_host::clock;
use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::pool::Outcome;
use super::timeouts::PoolTimeouts;
use crate::apiserver::address::{Address, Host, Server};
use crate::apiserver::connection::client;
use crate::apiserver::connection::connect::Connector;
use crate::apiserver::connection::error::LinkError;
use crate::apiserver::connection::link::Link;
use crate::apiserver::credentials::Credentials;
use crate::apiserver::credentials::login::Login;

/// The maximum number of addresses of a name that are tried.
const MOST_RESOLVED: usize = 8;

/// The maximum size of the response in bytes; it contains one Service.
const MAX_ANSWER: usize = 2 << 20;

#[derive(Clone)]
pub struct Attempt {
    pub server: Server,
    pub connector: Connector,
    pub login: Arc<Login>,
    /// Provides a new login if the server rejects the current one.
    pub credentials: Arc<Credentials>,
    /// The expected uid of the Service `default/kubernetes`, if known.
    pub cluster: Option<String>,
    /// The latest known addresses of the server's name.
    pub last: Vec<SocketAddr>,
    pub timeouts: PoolTimeouts,
}

/// A connection with a read that the server has answered.
#[derive(Debug)]
pub struct Opened {
    pub link: Arc<Link>,
    pub login: Arc<Login>,
    /// The `metadata.resourceVersion` of the read, which is valid for Services.
    pub revision: u64,
    /// The time when the read was sent.
    pub asked: Instant,
    /// The uid of the Service `default/kubernetes`; `None` if it does not exist.
    pub cluster: Option<String>,
}

impl Attempt {
    /// This server, restricted to one of its addresses.
    #[must_use]
    pub fn pinned(mut self, at: SocketAddr) -> Self {
        if let Host::Name(name) = &self.server.address.host {
            let name = self.server.tls_server_name.take().unwrap_or_else(|| Arc::clone(name));
            self.server = Server { address: Address::from(at), tls_server_name: Some(name) };
        }
        self
    }

    /// Opens a connection within [`PoolTimeouts::open`]. Also returns the addresses of the server's name, if it was
    /// resolved.
    ///
    /// # Errors
    /// The error of the first address that failed.
    pub async fn open(self) -> (Result<Opened, LinkError>, Vec<SocketAddr>) {
        let timeout = Duration::from_millis(self.timeouts.open);
        let work = |attempt: Self, at| async move { attempt.open_at(at, &attempt.login).await };
        self.within(timeout, "is not ready for use", work).await
    }

    /// Does the work over the first address of the server where it succeeds. `late` describes a timeout.
    async fn within<T, F>(
        self,
        timeout: Duration,
        late: &str,
        work: impl Fn(Self, SocketAddr) -> F,
    ) -> (Result<T, LinkError>, Vec<SocketAddr>)
    where
        T: Send + 'static,
        F: Future<Output = Result<T, LinkError>> + Send + 'static,
    {
        let address = &self.server.address;
        let mut resolved = Vec::new();
        let working = async {
            resolved = resolve(address, &self.last, Duration::from_millis(self.timeouts.resolve)).await?;
            self.race(&resolved, work).await
        };
        let done = clock::by(Instant::now() + timeout, working)
            .await
            .unwrap_or_else(|_late| Err(LinkError::TimedOut(format!("{address} {late} within {timeout:?}"))));
        (done, resolved)
    }

    /// Tries the addresses in order, and starts with the next one as soon as one fails or takes too long. Returns the
    /// first success, or the first error.
    async fn race<T, F>(&self, addresses: &[SocketAddr], work: impl Fn(Self, SocketAddr) -> F) -> Result<T, LinkError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, LinkError>> + Send + 'static,
    {
        let mut tries = JoinSet::new();
        let mut first_error = None;
        let mut addresses = addresses.iter();
        loop {
            if let Some(at) = addresses.next() {
                tries.spawn(work(self.clone(), *at));
            }
            let hedge = Duration::from_millis(self.timeouts.hedge);
            let next = (addresses.len() > 0).then(|| Instant::now() + hedge);
            let error = tokio::select! {
                done = tries.join_next() => match done {
                    Some(Ok(Ok(done))) => return Ok(done),
                    Some(Ok(Err(error))) => error,
                    Some(Err(error)) => LinkError::Broken(format!("a bug in nodelb, please report it: {error}")),
                    None => break,
                },
                () = clock::at(next) => continue,
            };
            first_error = first_error.or(Some(error));
        }
        Err(first_error.unwrap_or_else(|| LinkError::Unreachable(format!("{} has no address", self.server.address))))
    }

    /// Verifies an error that would be final. If the login is rejected, reads the credentials again, because the token
    /// may have just been rotated. A refusal counts only if the server is ready. If another cluster responds, repeats
    /// the request over a second connection.
    async fn open_at(&self, at: SocketAddr, login: &Arc<Login>) -> Result<Opened, LinkError> {
        let mut opened = self.open_as(at, login).await;
        if matches!(opened, Err((LinkError::Unauthorized(_), _))) {
            self.credentials.reject(login);
            if let Ok(fresh) = self.credentials.login().await
                && !Arc::ptr_eq(&fresh, login)
            {
                opened = self.open_as(at, &fresh).await;
            }
        }
        if let Ok(other) = &opened
            && self.cluster.is_some()
            && other.cluster.is_some()
            && other.cluster != self.cluster
        {
            let login = Arc::clone(&other.login);
            opened = self.open_as(at, &login).await;
        }
        match opened {
            Ok(opened) => Ok(opened),
            Err((error, None)) => Err(error),
            Err((error, Some(link))) => Err(verdict(&link, error, Duration::from_millis(self.timeouts.open)).await),
        }
    }

    async fn ready_link(&self, at: SocketAddr, timeout: Duration) -> Result<Arc<Link>, LinkError> {
        let link = Link::open(&self.connector, at, &self.server, &self.login).await?;
        match link.get("/readyz", timeout).await {
            // The server responds to this client, and that is sufficient, even if there are too many requests or the
            // path is forbidden.
            Ok(_) | Err(LinkError::Status { .. } | LinkError::Forbidden(_) | LinkError::Busy { code: 429, .. }) => {
                Ok(link)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a connection and sends the read. An error of the read contains the link.
    async fn open_as(&self, at: SocketAddr, login: &Arc<Login>) -> Result<Opened, (LinkError, Option<Arc<Link>>)> {
        let link = Link::open(&self.connector, at, &self.server, login).await.map_err(|error| (error, None))?;
        let asked = Instant::now();
        match ask(&link, Duration::from_millis(self.timeouts.open)).await {
            Ok((revision, cluster)) => Ok(Opened { link, login: Arc::clone(login), revision, asked, cluster }),
            Err(error) => Err((error, Some(link))),
        }
    }
}

/// Decides whether a refusal is final. An apiserver that starts accepts connections before it can authorize requests,
/// and refuses all of them until then. In that case, `/readyz` reports an error or is refused as well.
async fn verdict(link: &Link, refusal: LinkError, timeout: Duration) -> LinkError {
    if !matches!(refusal, LinkError::Unauthorized(_) | LinkError::Forbidden(_) | LinkError::Status { .. }) {
        return refusal;
    }
    match link.get("/readyz", timeout).await {
        Ok(_) => refusal,
        Err(LinkError::Busy { code, message, retry_after }) => {
            let message = format!("{message}; it answered {refusal}");
            LinkError::Busy { code, message, retry_after }
        }
        Err(LinkError::Unauthorized(_) | LinkError::Forbidden(_) | LinkError::Status { .. } | LinkError::Gone(_)) => {
            LinkError::Unproven(refusal.to_string())
        }
        Err(error) => error,
    }
}

/// The cluster's current version and the uid of the Service `default/kubernetes`, from a consistent read. Lists it,
/// because the role `system:node-proxier` does not permit get.
pub async fn ask(link: &Arc<Link>, timeout: Duration) -> Result<(u64, Option<String>), LinkError> {
    let services = Api::namespaced(client::over(link, timeout, MAX_ANSWER), "default");
    let found = services.list(&ListParams::default().fields("metadata.name=kubernetes").limit(1)).await?;
    read(found).map_err(|error| LinkError::Broken(format!("{} does not answer like an apiserver: {error}", link.at())))
}

fn read(found: ObjectList<Service>) -> Result<(u64, Option<String>), String> {
    let version = found.metadata.resource_version.unwrap_or_default();
    let revision = version.parse().map_err(|_not_a_number| format!("resourceVersion `{}`", version.escape_debug()))?;
    let cluster = found.items.into_iter().find_map(|item| item.metadata.uid).filter(|uid| !uid.is_empty());
    Ok((revision, cluster))
}

/// Checks over a separate connection whether a server is ready. Returns the connection, and the addresses of the server's
/// name, if it was resolved. The only certain facts about the server are that the certificate authority trusts it and
/// that it is ready.
pub async fn probe(attempt: Attempt, timeout: Duration) -> (Result<Arc<Link>, LinkError>, Vec<SocketAddr>) {
    let work = move |attempt: Attempt, at| async move { attempt.ready_link(at, timeout).await };
    attempt.within(timeout, "has not answered GET /readyz", work).await
}

/// The socket addresses of an address: the address itself if it is an IP address, otherwise the resolver's response
/// within `timeout`. If the resolver fails, returns the addresses in `last`.
///
/// # Errors
/// [`LinkError::Unreachable`] if no address of the name is known.
async fn resolve(address: &Address, last: &[SocketAddr], timeout: Duration) -> Result<Vec<SocketAddr>, LinkError> {
    let Host::Name(name) = &address.host else { return Ok(address.socket().into_iter().collect()) };
    let found = match tokio::time::timeout(timeout, lookup_host((&**name, address.port))).await {
        Ok(Ok(found)) => usable(found),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_elapsed) => Err(format!("no answer within {timeout:?}")),
    };
    match found {
        Ok(found) => Ok(found),
        Err(_) if !last.is_empty() => Ok(last.to_vec()),
        Err(why) => Err(LinkError::Unreachable(format!("{name} does not resolve: {why}"))),
    }
}

fn usable(found: impl Iterator<Item = SocketAddr>) -> Result<Vec<SocketAddr>, String> {
    let mut usable = Vec::new();
    for at in found {
        let at = SocketAddr::new(at.ip().to_canonical(), at.port());
        let is_unusable = at.ip().is_unspecified() || at.ip().is_multicast();
        if !is_unusable && !usable.contains(&at) && usable.len() < MOST_RESOLVED {
            usable.push(at);
        }
    }
    if usable.is_empty() { Err("it has no usable address".into()) } else { Ok(usable) }
}

pub fn outcome_of(error: &LinkError, timeouts: &PoolTimeouts) -> Outcome {
    let reported = error.to_string();
    match error {
        LinkError::Unreachable(_) | LinkError::Broken(_) | LinkError::TimedOut(_) => Outcome::Failed(reported),
        LinkError::Certificate(_) | LinkError::Unauthorized(_) | LinkError::Forbidden(_) | LinkError::Status { .. } => {
            Outcome::Refused(reported)
        }
        LinkError::Busy { .. } | LinkError::Gone(_) => {
            let pause = error.pause(Duration::from_millis(timeouts.retry_most)).as_millis();
            Outcome::NotReady(reported, u64::try_from(pause).unwrap_or(u64::MAX))
        }
        LinkError::Unproven(_) => Outcome::Unproven(reported),
    }
}

/// The outcome of a probe. A server responds to `/readyz` with 401 for all clients while its authenticators do not
/// work.
pub fn outcome_of_probe(error: &LinkError, timeouts: &PoolTimeouts) -> Outcome {
    match error {
        LinkError::Unauthorized(_) => Outcome::Unproven(error.to_string()),
        _ => outcome_of(error, timeouts),
    }
}

#[cfg(test)]
#[path = "tests/preflight.rs"]
mod tests;
