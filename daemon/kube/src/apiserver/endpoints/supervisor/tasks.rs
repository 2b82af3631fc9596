//! The tasks that the supervisor starts for everything that has to wait. Each has a time limit. Every task yields a
//! result unless the supervisor aborts it; a panic ends the daemon.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::{AbortHandle, Id, JoinSet};

use crate::apiserver::address::Address;
use crate::apiserver::connection::error::LinkError;
use crate::apiserver::credentials::login::{CredentialsError, Login};
use crate::apiserver::endpoints::preflight::Opened;
use crate::apiserver::endpoints::state_file::{EndpointsState, Stored};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Open(Address),
    Probe(Address),
    Login,
    /// Checks whether the server in use accepts a new token.
    Verify,
}

pub(super) enum Done {
    /// The connection and the reason why this server was chosen.
    Opened(Address, Box<Result<(Opened, String), LinkError>>, Vec<SocketAddr>),
    Probed(Address, Result<(), LinkError>, Vec<SocketAddr>),
    Login {
        login: Result<Arc<Login>, CredentialsError>,
        /// Why it is the last valid login, if the current credentials cannot be used.
        trouble: Option<String>,
        /// The contents of the state file, with the first login.
        stored: Option<EndpointsState>,
        /// The state file, if it has not been read yet.
        unread: Option<Stored>,
    },
    /// The number of the session with the queried server, the login and the result.
    Verified(u64, Arc<Login>, Result<(), LinkError>),
}

#[derive(Default)]
pub(super) struct Tasks {
    tasks: JoinSet<Done>,
    known: HashMap<Id, (Task, AbortHandle)>,
}

impl Tasks {
    pub(super) fn send(&mut self, task: Task, work: impl Future<Output = Done> + Send + 'static) {
        let handle = self.tasks.spawn(work);
        self.known.insert(handle.id(), (task, handle));
    }

    pub(super) fn is_out(&self, task: &Task) -> bool {
        self.known.values().any(|(known, _)| known == task)
    }

    /// Aborts the selected tasks. They yield no result.
    pub(super) fn give_up(&mut self, is_meant: impl Fn(&Task) -> bool) {
        self.known.retain(|_, (task, handle)| {
            let goes = is_meant(task);
            if goes {
                handle.abort();
            }
            !goes
        });
    }

    /// The next result. Never ready without a task.
    pub(super) async fn next(&mut self) -> Done {
        loop {
            match self.tasks.join_next_with_id().await {
                None => std::future::pending().await,
                Some(Ok((id, done))) if self.known.remove(&id).is_some() => return done,
                Some(_) => {}
            }
        }
    }
}
