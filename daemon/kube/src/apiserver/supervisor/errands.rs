//! What the supervisor has others do: each errand is a task of its own with bounded time, so that the supervisor never
//! waits. Owns the tasks; an errand always comes back, whatever becomes of its task.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::{AbortHandle, Id, JoinSet};

use crate::apiserver::address::Address;
use crate::apiserver::error::LinkError;
use crate::apiserver::login::{CredentialsError, Login};
use crate::apiserver::preflight::Opened;
use crate::apiserver::remember::Memory;

/// What was to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Errand {
    /// A connection good for a session.
    Open(Address),
    /// A question whether the server is ready.
    Probe(Address),
    /// The credentials as they are now.
    Login,
    /// Whether the server in use accepts another token.
    Verify,
    /// The state file.
    Save,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Done {
    Opened(Address, Box<Result<Opened, LinkError>>, Vec<SocketAddr>),
    Probed(Address, Result<(), LinkError>, Vec<SocketAddr>),
    /// The first one together with what is remembered, or why it is not.
    Login(Result<Arc<Login>, CredentialsError>, Result<Option<Memory>, String>),
    /// With the number of the session whose server was asked.
    Verified(u64, Arc<Login>, Result<(), LinkError>),
    Saved(Result<(), String>),
}

#[derive(Debug, Default)]
pub(super) struct Errands {
    tasks: JoinSet<Done>,
    known: HashMap<Id, (Errand, AbortHandle)>,
}

impl Errands {
    pub(super) fn send(&mut self, errand: Errand, work: impl Future<Output = Done> + Send + 'static) {
        let handle = self.tasks.spawn(work);
        self.known.insert(handle.id(), (errand, handle));
    }

    pub(super) fn is_out(&self, errand: &Errand) -> bool {
        self.known.values().any(|(known, _)| known == errand)
    }

    /// Calls every attempt to connect back; none of them reports any more.
    pub(super) fn give_up_opening(&mut self) {
        self.give_up(|errand| matches!(errand, Errand::Open(_)));
    }

    /// Calls back those that are meant; none of them reports any more.
    pub(super) fn give_up(&mut self, is_meant: impl Fn(&Errand) -> bool) {
        self.known.retain(|_, (errand, handle)| {
            let goes = is_meant(errand);
            if goes {
                handle.abort();
            }
            !goes
        });
    }

    /// The next errand that is done. Never ready while there is none.
    pub(super) async fn next(&mut self) -> Done {
        loop {
            let (id, done) = match self.tasks.join_next_with_id().await {
                None => std::future::pending().await,
                Some(Ok((id, done))) => (id, Ok(done)),
                Some(Err(error)) => (error.id(), Err(error.to_string())),
            };
            let Some((errand, _)) = self.known.remove(&id) else { continue };
            return done.unwrap_or_else(|error| broken(errand, &error));
        }
    }
}

/// A task that panicked.
fn broken(errand: Errand, error: &str) -> Done {
    let error = format!("a bug of nodelb, please report it: {error}");
    match errand {
        Errand::Open(address) => Done::Opened(address, Box::new(Err(LinkError::Broken(error))), Vec::new()),
        Errand::Probe(address) => Done::Probed(address, Err(LinkError::Broken(error)), Vec::new()),
        Errand::Verify | Errand::Login => Done::Login(Err(CredentialsError(error)), Ok(None)),
        Errand::Save => Done::Saved(Err(error)),
    }
}
