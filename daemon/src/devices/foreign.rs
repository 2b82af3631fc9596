//! Keeps the packet programs from taking source ports that connections of other proxies use, where the programs cannot
//! query connection tracking. The connections are listed in this process if it has CAP_NET_ADMIN, and otherwise by a
//! reaper, which has it.

use std::io;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;

use nodelb_datapath::packets::{ForeignConnections, ForeignPorts};
use nodelb_host::messages;
use tracing::warn;

use super::privileged::{PacketReaper, with_privilege};
use crate::sockets::conntrack;
use crate::sockets::reaper::wire::{Order, decode_ends};

/// Lists the connections and tells the programs.
pub(crate) type UpdatePorts = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>> + Send + Sync>;

/// An updater. Without a reaper, it works only in a process with CAP_NET_ADMIN.
pub(crate) fn updater(ports: ForeignPorts, reaper: Option<PacketReaper>) -> UpdatePorts {
    let ports = Arc::new(ports);
    Arc::new(move || {
        let (ports, reaper) = (Arc::clone(&ports), reaper.clone());
        Box::pin(async move {
            let (range, order) = (ports.range().clone(), Order::Masqueraded(ports.range().clone()));
            let list = move |reaper: PacketReaper| async move { Ok(decode_ends(&reaper.list(&order).await?)) };
            let connections = with_privilege(move || conntrack::masqueraded(&range), reaper, list).await?;
            tokio::task::spawn_blocking(move || ports.set(&connections)).await.map_err(io::Error::other)?
        })
    })
}

/// The connections that others have made from these ports, listed before capabilities are dropped.
pub(crate) fn foreign_connections(ports: &RangeInclusive<u16>) -> ForeignConnections {
    conntrack::masqueraded(ports).unwrap_or_else(|error| {
        log_unlisted(&error);
        ForeignConnections::new()
    })
}

/// Logs that the connections of others could not be listed, or not all of them fit.
pub(super) fn log_unlisted(error: &io::Error) {
    warn!(
        message_id = %messages::FOREIGN_PORTS_UNKNOWN,
        "not all ports that connections of other proxies use are known: {error}; nodelb may take such a port for a \
         connection to the same backend, which may reset the other one"
    );
}
