//! The policies of IPsec, which the packet programs follow. They are read in this process if it has CAP_NET_ADMIN, and
//! otherwise by a reaper, which has it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::history::{Event, What};
use nodelb_core::model::ipsec::{Policies, Policy};
use nodelb_core::text::counted;
use nodelb_datapath::packets::{ConnectionEnds, MOST_POLICIES};
use nodelb_host::messages;
use tokio::time::Instant;
use tracing::{info, warn};

use super::abandoned::EndConnections;
use super::privileged::{PacketReaper, with_privilege};
use crate::sockets::reaper::wire::{Order, decode_policies};
use crate::sockets::xfrm::{self, PolicyEvents};

/// How often they are read if no event has come.
const READ_EVERY: Duration = Duration::from_secs(30);

pub(crate) type ReadPolicies =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = io::Result<Policies>> + Send>> + Send + Sync>;

/// Makes the programs follow the policies.
pub(crate) type WritePolicies = Arc<dyn Fn(&Policies) -> io::Result<()> + Send + Sync>;

/// A reader of the policies. Without a reaper, it works only in a process with CAP_NET_ADMIN.
pub(crate) fn reader(reaper: Option<PacketReaper>) -> ReadPolicies {
    Arc::new(move || {
        let reaper = reaper.clone();
        Box::pin(async move {
            let list = async |reaper: PacketReaper| Ok(decode_policies(&reaper.list(&Order::Policies).await?));
            Ok(rules(&with_privilege(xfrm::read, reaper, list).await?))
        })
    })
}

fn rules(policies: &[Policy]) -> Policies {
    Policies::new(policies, MOST_POLICIES)
}

/// The policies at the start, read before capabilities are dropped; `None` if they could not be read.
pub(crate) fn policies() -> Option<Policies> {
    xfrm::read().map(|policies| rules(&policies)).inspect_err(log_unread).ok()
}

/// What makes the programs follow the policies.
pub(crate) struct PolicyInputs {
    pub(crate) read: ReadPolicies,
    pub(crate) write: WritePolicies,
    pub(crate) end: EndConnections,
    /// Changes of policies since the start; `None` if the kernel has none, or this process may not listen.
    pub(crate) events: Option<PolicyEvents>,
    /// The policies that were read at the start, and that the programs follow since.
    pub(crate) current: Option<Policies>,
}

/// The policies that the programs follow.
pub(super) struct Follower {
    inputs: PolicyInputs,
    pub(super) current: Arc<Policies>,
    read: Option<Instant>,
    has_failed: bool,
}

impl Follower {
    pub(super) fn new(mut inputs: PolicyInputs) -> Self {
        let current = inputs.current.take();
        let read = current.is_some().then(Instant::now);
        Self { inputs, current: Arc::new(current.unwrap_or_default()), read, has_failed: false }
    }

    /// Waits until policies may have changed.
    pub(super) async fn changed(&mut self) {
        match &self.inputs.events {
            Some(events) if events.next().await.is_ok() => self.read = None,
            _ => std::future::pending().await,
        }
    }

    /// Reads the policies if it is time for that, and makes the programs follow them; connections that they protect end.
    /// Returns what has changed.
    pub(super) async fn follow(&mut self) -> Option<Event> {
        if self.read.is_some_and(|at| at.elapsed() < READ_EVERY) {
            return None;
        }
        self.read = Some(Instant::now());
        let followed = match (self.inputs.read)().await {
            Ok(policies) if policies == *self.current => Ok(None),
            Ok(policies) => self.apply(policies).await.map(Some),
            Err(error) => Err(error),
        };
        match followed {
            Ok(event) => {
                self.has_failed = false;
                event
            }
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    log_unread(&error);
                }
                None
            }
        }
    }

    async fn apply(&mut self, policies: Policies) -> io::Result<Event> {
        let policies = Arc::new(policies);
        let (write, end, next) = (Arc::clone(&self.inputs.write), Arc::clone(&self.inputs.end), Arc::clone(&policies));
        let applied = tokio::task::spawn_blocking(move || {
            write(&next)?;
            if next.rules.is_empty() { Ok(0) } else { end(&|ends| covers(&next, ends)) }
        });
        let entries = applied.await.map_err(io::Error::other)??;
        self.current = policies;
        let text = match self.current.rules.is_empty() {
            true => "no policy of IPsec protects packets".to_owned(),
            false => format!(
                "policies of IPsec protect packets: connections of clients outside the node that they cover are refused; {} \
                 ended",
                counted(usize::try_from(entries.div_ceil(2)).unwrap_or(usize::MAX), "connection")
            ),
        };
        info!(message_id = %messages::POLICIES_CHANGED, "{text}");
        Ok(Event::for_daemon(What::Changed, text))
    }
}

/// Whether a policy protects what the connection sends and the programs would send in clear text.
fn covers(policies: &Policies, ends: &ConnectionEnds) -> bool {
    policies.protect(ends.client, ends.frontend)
        || ends.past_stack.is_some_and(|(source, backend)| policies.protect(source, backend))
}

pub(super) fn log_unread(error: &io::Error) {
    warn!(
        message_id = %messages::POLICIES_UNREAD,
        "cannot read the policies of IPsec: {error}; connections of clients outside the node follow those that were last \
         read, and packets that a new policy protects may be sent in clear text"
    );
}

#[cfg(test)]
#[path = "tests/policies.rs"]
mod tests;
