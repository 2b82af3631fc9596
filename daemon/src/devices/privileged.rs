//! The reaper of the packet path, for what takes CAP_NET_ADMIN after the start: kube-proxy's rules, masqueraded
//! connections and policies of IPsec are read, and filters at devices are changed.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nodelb_datapath::{ChangeFilters, FilterChange};
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use crate::sockets::reaper::wire::Order;
use crate::sockets::reaper::{Reaper, ReaperLine};

/// The reaper and the connection to it, shared by those that send orders.
#[derive(Clone, Debug)]
pub(crate) struct PacketReaper(Arc<Mutex<ReaperConnection>>);

#[derive(Debug)]
struct ReaperConnection {
    reaper: Reaper,
    line: Option<ReaperLine>,
}

impl PacketReaper {
    pub(crate) fn new(reaper: Reaper) -> Self {
        Self(Arc::new(Mutex::new(ReaperConnection { reaper, line: None })))
    }

    /// Sends an order with one outcome, and the descriptor for it; returns the number in the outcome. If the reaper has
    /// ended since the last order, the next one gets this order.
    pub(crate) async fn order(&self, order: &Order, descriptor: Option<BorrowedFd<'_>>) -> io::Result<u32> {
        let mut connection = self.0.lock().await;
        let used = match connection.line.take() {
            Some(mut line) => line.order_with(order, descriptor).await.ok().map(|outcomes| (line, outcomes)),
            None => None,
        };
        let (line, outcomes) = match used {
            Some(answered) => answered,
            None => {
                let mut line = connection.reaper.open().await?;
                let outcomes = line.order_with(order, descriptor).await?;
                (line, outcomes)
            }
        };
        connection.line = Some(line);
        let outcome = outcomes.first().copied().ok_or(io::ErrorKind::InvalidData)?;
        match outcome.errno {
            0 => Ok(outcome.destroyed),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Sends an order with a file, and returns what the reaper has written into it.
    pub(crate) async fn list(&self, order: &Order) -> io::Result<Vec<u8>> {
        let mut file = File::from(memfd_create(c"nodelb-list", MFdFlags::MFD_CLOEXEC)?);
        self.order(order, Some(file.as_fd())).await?;
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Does what takes CAP_NET_ADMIN: in this process if it has that, otherwise through the reaper, if there is one.
pub(super) async fn with_privilege<T: Send + 'static, F: Future<Output = io::Result<T>>>(
    here: impl FnOnce() -> io::Result<T> + Send + 'static,
    reaper: Option<PacketReaper>,
    there: impl FnOnce(PacketReaper) -> F,
) -> io::Result<T> {
    match (tokio::task::spawn_blocking(here).await.map_err(io::Error::other)?, reaper) {
        (Err(error), Some(reaper)) if error.kind() == io::ErrorKind::PermissionDenied => there(reaper).await,
        (here, _) => here,
    }
}

/// Changes filters through the reaper, from threads that may wait, which are not the runtime's workers.
#[derive(Debug)]
pub(crate) struct ByReaper {
    pub(crate) reaper: PacketReaper,
    pub(crate) runtime: Handle,
}

impl ChangeFilters for ByReaper {
    fn change(&self, ifindex: u32, change: FilterChange, program: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let order = Order::Filter { ifindex, change };
        self.runtime.block_on(self.reaper.order(&order, program)).map(drop)
    }
}

#[cfg(test)]
#[path = "tests/privileged.rs"]
mod tests;
