//! The task that follows the node's addresses: listens to the kernel, and reads everything again when something may
//! have changed. Owns the schedule; the owner task receives only differences.
//!
//! A lost event does no harm: the kernel reports lost events, and the task also reads everything periodically.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::model::addr::Addr;
use nodelb_core::model::node::NodeFacts;
use nodelb_host::clock::until;
use nodelb_host::messages;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use super::addresses::{Addresses, Machine};
use super::identity::{Identity, host_name, is_unset};
use super::netlink::{self, Events};

/// The interval of reads without an event.
const EVERY: Duration = Duration::from_secs(60);

/// The first and the longest delay before a failed read is repeated.
const RETRY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// The maximum duration of a read.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How often a start reads the addresses at most.
const FIRST_READS: u32 = 3;

/// Sends the owner the facts about the node, and from then on, until `shutdown`, each change of them. A new value of
/// `identity` takes effect at once. `former` are the primary addresses of an earlier nodelb.
///
/// # Errors
/// If the kernel does not list the addresses. Later failures are repeated, and the last known addresses stay in effect.
pub async fn start(
    identity: watch::Receiver<Arc<Identity>>,
    former: Vec<Addr>,
    changes: mpsc::Sender<Vec<Change>>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    // Opened before the first read, so that no later change is missed.
    let events = Events::open()?;
    let addresses = Addresses::new(&until_answered(read).await?, &former, &identity.borrow().service_addresses);
    info!(message_id = %messages::NODE_ADDRESSES, "addresses of this node: {addresses}");
    let mut watch = Watch {
        events: Some(events),
        identity,
        changes,
        addresses,
        reported: NodeFacts::default(),
        wait: None,
        host_name,
        late_name: None,
        other_name: None,
    };
    let identity = watch.take_identity();
    watch.publish(&identity).await;
    tokio::spawn(until(shutdown, watch.run()));
    Ok(())
}

struct Watch {
    events: Option<Events>,
    identity: watch::Receiver<Arc<Identity>>,
    changes: mpsc::Sender<Vec<Change>>,
    addresses: Addresses,
    /// The facts that were last sent to the owner.
    reported: NodeFacts,
    /// The delay after a failure; `None` after a success.
    wait: Option<Duration>,
    host_name: fn() -> io::Result<String>,
    /// The host name, if it was set after the identity was read.
    late_name: Option<Arc<str>>,
    /// A different host name that is not used and was reported.
    other_name: Option<String>,
}

impl Watch {
    /// Runs until the owner has closed the queue.
    async fn run(mut self) {
        loop {
            let next_look = Instant::now() + self.wait.unwrap_or(EVERY);
            tokio::select! {
                received = next(&mut self.events) => if !self.settle(received).await {
                    continue;
                },
                changed = self.identity.changed() => {
                    // The value is marked as seen only when it is used.
                    self.identity.mark_changed();
                    let identity = self.take_identity();
                    if changed.is_err() || !self.publish(&identity).await {
                        return;
                    }
                    continue;
                }
                () = sleep_until(next_look) => {}
            }
            if !self.refresh().await {
                return;
            }
        }
    }

    /// Waits until events pause; returns false if the socket failed.
    async fn settle(&mut self, received: io::Result<()>) -> bool {
        let settled = match (received, &mut self.events) {
            (Ok(()), Some(events)) => events.settle().await,
            (received, _) => received,
        };
        if let Err(error) = &settled {
            self.events = None;
            self.fail(error);
        }
        settled.is_ok()
    }

    /// Reads everything and sends the differences; returns false if the owner has closed the queue.
    async fn refresh(&mut self) -> bool {
        let is_new_socket = self.events.is_none();
        let addresses = match self.look().await {
            Ok(addresses) => addresses,
            Err(error) => {
                self.fail(&error);
                return true;
            }
        };
        // A reopened socket may fail again: the failure counts as over only at the next read.
        if !is_new_socket && self.wait.take().is_some() {
            info!(message_id = %messages::NODE_ADDRESSES, "monitoring the addresses of this node again");
        }
        if let Some(difference) = addresses.difference(&self.addresses) {
            info!(message_id = %messages::NODE_ADDRESSES, "addresses of this node: {difference}");
        }
        self.addresses = addresses;
        let identity = self.take_identity();
        self.look_at_host_name(&identity);
        self.publish(&identity).await
    }

    /// Reads the addresses, with an open socket, so that no later change is missed.
    async fn look(&mut self) -> io::Result<Addresses> {
        if self.events.is_none() {
            self.events = Some(Events::open()?);
        }
        let machine = read().await?;
        Ok(Addresses::new(&machine, &self.addresses.settled, &self.identity.borrow().service_addresses))
    }

    /// The current identity. A reload that made a new one has read the host name again, so earlier findings about it no
    /// longer count.
    fn take_identity(&mut self) -> Arc<Identity> {
        let identity = self.identity.borrow_and_update();
        if identity.has_changed() {
            (self.late_name, self.other_name) = (None, None);
        }
        Arc::clone(&identity)
    }

    /// Uses a host name that is set late, for example by DHCP. A later change is only reported: the kubelet keeps the
    /// name from its start, and so does the Node.
    fn look_at_host_name(&mut self, identity: &Identity) {
        let Ok(now) = (self.host_name)() else { return };
        let used = self.late_name.as_ref().unwrap_or(&identity.name);
        if !identity.is_host_name || is_unset(&now) || now == **used {
            self.other_name = None;
        } else if is_unset(used) {
            info!(message_id = %messages::NODE_NAMED, "the host name changed: this node is now {now}, previously \
                 {used}");
            self.late_name = Some(now.into());
        } else if self.other_name.as_ref() != Some(&now) {
            warn!(
                message_id = %messages::NODE_NAMED,
                "the host name is now {now}; nodelb keeps the node name {used}, like the kubelet. If the Node object \
                 is {now}, run systemctl reload nodelb or set node.name"
            );
            self.other_name = Some(now);
        }
    }

    /// Records a failure; logs the first of several.
    fn fail(&mut self, error: &io::Error) {
        let [first, longest] = RETRY;
        if self.wait.is_none() {
            warn!(
                message_id = %messages::NODE_UNKNOWN,
                "cannot monitor the addresses of this node: {error}; using the last known ones and retrying"
            );
        }
        self.wait = Some(self.wait.map_or(first, |wait| (wait * 2).min(longest)));
    }

    /// Sends the facts to the owner if they have changed; returns false if the owner has closed the queue.
    async fn publish(&mut self, identity: &Identity) -> bool {
        let mut facts = identity.facts(&self.addresses);
        if let Some(name) = &self.late_name {
            facts.name = Arc::clone(name);
        }
        if facts == self.reported {
            return true;
        }
        self.reported = facts.clone();
        self.changes.send(vec![Change::Node(facts)]).await.is_ok()
    }
}

/// The next event. Never returns while there is no socket.
async fn next(events: &mut Option<Events>) -> io::Result<()> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

/// Reads again if the kernel does not answer in time: it may be busy, for example with the end of many network namespaces.
async fn until_answered<T, F: Future<Output = io::Result<T>>>(read: impl Fn() -> F) -> io::Result<T> {
    for _ in 1..FIRST_READS {
        match read().await {
            Err(error) if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {
                warn!(message_id = %messages::NODE_UNKNOWN, "the kernel does not report the addresses of the node: {error}");
            }
            outcome => return outcome,
        }
    }
    read().await
}

/// Reads the addresses on a separate thread, because a read may block.
async fn read() -> io::Result<Machine> {
    let reading = tokio::task::spawn_blocking(netlink::read);
    match timeout(TIMEOUT, reading).await {
        Ok(read) => read.map_err(io::Error::other)?,
        Err(_elapsed) => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
#[path = "tests/watch.rs"]
mod tests;
