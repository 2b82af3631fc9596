//! The task that follows the node's addresses: listens to the kernel, and reads everything again when something may have
//! changed. Owns when that is; the owner is told only of what differs.
//!
//! Losing an event is no harm: the kernel says that it lost some, and everything is also read now and then.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::messages;
use nodelb_core::model::node::NodeFacts;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use super::addresses::Addresses;
use super::netlink::{self, Events};
use super::{Identity, host_name, is_unset};

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How long no further event must come before everything is read again: an interface that comes up brings a dozen.
    pub settle: Duration,
    /// How long that may take in all, while events keep coming.
    pub settle_at_most: Duration,
    /// How often everything is read although nothing was heard.
    pub every: Duration,
    /// First and longest wait before a failed reading is repeated.
    pub retry: (Duration, Duration),
    /// How long a reading may take.
    pub patience: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            settle: Duration::from_millis(20),
            settle_at_most: Duration::from_millis(200),
            every: Duration::from_secs(60),
            retry: (Duration::from_millis(100), Duration::from_secs(5)),
            patience: Duration::from_secs(10),
        }
    }
}

/// What the task works with.
#[derive(Debug)]
pub struct Connections {
    /// What is set about the node; another value is taken over at once.
    pub identity: watch::Receiver<Arc<Identity>>,
    /// To the owner.
    pub changes: mpsc::Sender<Vec<Change>>,
}

/// Tells the owner what the node is, and from then on, until `shutdown`, how that changes.
///
/// # Errors
/// When the kernel does not tell the addresses. Afterwards that is tried again, and what was known last counts.
pub async fn start(
    connections: Connections,
    timing: Timing,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    // Before the first reading, so that nothing that changes after it is missed.
    let events = Events::open()?;
    let addresses = read(timing.patience).await?;
    let Connections { identity, changes } = connections;
    info!(message_id = %messages::NODE_ADDRESSES, "addresses of this node: {addresses}");
    let mut watch = Watch {
        events: Some(events),
        identity,
        changes,
        timing,
        addresses,
        told: NodeFacts::default(),
        wait: None,
        host_name,
        late_name: None,
        other_name: None,
    };
    let identity = watch.take_identity();
    watch.tell(&identity).await;
    tokio::spawn(async move {
        tokio::select! {
            () = watch.run() => {}
            () = shutdown => {}
        }
    });
    Ok(())
}

struct Watch {
    /// `None` while there is no socket.
    events: Option<Events>,
    identity: watch::Receiver<Arc<Identity>>,
    changes: mpsc::Sender<Vec<Change>>,
    timing: Timing,
    /// As last read.
    addresses: Addresses,
    /// What the owner was told last.
    told: NodeFacts,
    /// How long is waited after a failure; `None` after a success.
    wait: Option<Duration>,
    /// Reads the host name.
    host_name: fn() -> io::Result<String>,
    /// The host name, where it was set only after the identity was read.
    late_name: Option<Arc<str>>,
    /// A host name that is not taken over, and was reported.
    other_name: Option<String>,
}

impl Watch {
    /// Ends when nobody listens any more.
    async fn run(mut self) {
        loop {
            let next_look = Instant::now() + self.wait.unwrap_or(self.timing.every);
            tokio::select! {
                heard = next(&mut self.events) => if !self.settle(heard).await {
                    continue;
                },
                changed = self.identity.changed() => {
                    // Seen only when it is taken.
                    self.identity.mark_changed();
                    let identity = self.take_identity();
                    if changed.is_err() || !self.tell(&identity).await {
                        return;
                    }
                    continue;
                }
                () = sleep_until(next_look) => {}
            }
            if !self.look().await {
                return;
            }
        }
    }

    /// Waits until no more events come; false if the socket broke.
    async fn settle(&mut self, mut heard: io::Result<()>) -> bool {
        let latest = Instant::now() + self.timing.settle_at_most;
        loop {
            if let Err(error) = heard {
                self.events = None;
                self.fail(&error);
                return false;
            }
            let quiet = (Instant::now() + self.timing.settle).min(latest);
            tokio::select! {
                biased;
                () = sleep_until(quiet) => return true,
                again = next(&mut self.events) => heard = again,
            }
        }
    }

    /// Reads everything and tells what is new; false if nobody listens any more.
    async fn look(&mut self) -> bool {
        let is_new_socket = self.events.is_none();
        if is_new_socket {
            match Events::open() {
                Ok(events) => self.events = Some(events),
                Err(error) => {
                    self.fail(&error);
                    return true;
                }
            }
        }
        let addresses = match read(self.timing.patience).await {
            Ok(addresses) => addresses,
            Err(error) => {
                self.fail(&error);
                return true;
            }
        };
        // A socket that was opened again has yet to last: until the next look the failure is not over.
        if !is_new_socket && self.wait.take().is_some() {
            info!(message_id = %messages::NODE_ADDRESSES, "the node's addresses are followed again");
        }
        if let Some(news) = addresses.news(&self.addresses) {
            info!(message_id = %messages::NODE_ADDRESSES, "addresses of this node: {news}");
            self.addresses = addresses;
        }
        let identity = self.take_identity();
        self.look_at_host_name(&identity);
        self.tell(&identity).await
    }

    /// The identity as it is now. A reload that made another one has read the host name again: what was found out about
    /// that before counts no more.
    fn take_identity(&mut self) -> Arc<Identity> {
        let identity = self.identity.borrow_and_update();
        if identity.has_changed() {
            (self.late_name, self.other_name) = (None, None);
        }
        Arc::clone(&identity)
    }

    /// Takes over a host name that is set late, as by DHCP. One that changes is only reported: the kubelet keeps the name of
    /// its start, and so does the Node.
    fn look_at_host_name(&mut self, identity: &Identity) {
        let Ok(now) = (self.host_name)() else { return };
        let used = self.late_name.as_ref().unwrap_or(&identity.name);
        if !identity.is_host_name || is_unset(&now) || now == **used {
            self.other_name = None;
        } else if is_unset(used) {
            info!(message_id = %messages::NODE_NAMED, "the host name is set: this node is {now}, and was {used} before");
            self.late_name = Some(now.into());
        } else if self.other_name.as_ref() != Some(&now) {
            warn!(
                message_id = %messages::NODE_NAMED,
                "the host name is {now} now; nodelb goes on as node {used}, as the kubelet does. If the Node is {now}: \
                 systemctl reload nodelb, or set node.name"
            );
            self.other_name = Some(now);
        }
    }

    /// Notes a failure; the first of several is told.
    fn fail(&mut self, error: &io::Error) {
        let (first, longest) = self.timing.retry;
        if self.wait.is_none() {
            warn!(
                message_id = %messages::NODE_UNKNOWN,
                "the node's addresses cannot be followed: {error}; those last known count, and it is tried again"
            );
        }
        self.wait = Some(self.wait.map_or(first, |wait| (wait * 2).min(longest)));
    }

    /// Tells the owner, if there is anything to tell; false if nobody listens any more.
    async fn tell(&mut self, identity: &Identity) -> bool {
        let mut facts = identity.facts(&self.addresses);
        if let Some(name) = &self.late_name {
            facts.name = Arc::clone(name);
        }
        if facts == self.told {
            return true;
        }
        self.told = facts.clone();
        self.changes.send(vec![Change::Node(facts)]).await.is_ok()
    }
}

/// Never ends while there is no socket.
async fn next(events: &mut Option<Events>) -> io::Result<()> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

/// A reading may block, so it has a thread of its own.
async fn read(patience: Duration) -> io::Result<Addresses> {
    let reading = tokio::task::spawn_blocking(|| netlink::read().map(|machine| Addresses::of(&machine)));
    match timeout(patience, reading).await {
        Ok(read) => read.map_err(io::Error::other)?,
        Err(_elapsed) => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
#[path = "tests/watch.rs"]
mod tests;
