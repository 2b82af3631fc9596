//! The network devices of the node, as far as packets of clients outside of it pass through them: which devices lead to
//! other machines, with which addresses the node appears there, and from which ports.

pub mod hooks;
pub mod mode;
pub mod proxies;
pub mod report;
pub mod uplinks;
pub mod watch;

use std::fs;
use std::future::Future;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use nodelb_datapath::packets::OpenedPackets;
use tokio::sync::watch as channel;

use self::proxies::{ReadRules, nf_tables};
use self::report::DevicesReport;
use crate::config::Config;
use crate::reconcile::OwnerHandle;

/// What the tasks of this module publish.
#[derive(Clone)]
pub struct Published {
    /// The devices, and whether packets are translated.
    pub devices: channel::Receiver<Arc<DevicesReport>>,
}

/// Starts the tasks of the packet path. They end with `shutdown`; the programs stay attached.
pub fn start(
    packets: OpenedPackets,
    owner: &OwnerHandle,
    config: channel::Receiver<Arc<Config>>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Published {
    let OpenedPackets { hooks, settings, .. } = packets;
    let connections = watch::Connections {
        config,
        snapshot: owner.snapshot.clone(),
        changes: owner.changes.clone(),
        attach: Box::new(hooks),
        settings: Arc::new(move |values| settings.set(values)),
        rules: rules(),
    };
    Published { devices: watch::start(connections, shutdown) }
}

/// Reads kube-proxy's rules in this process.
fn rules() -> ReadRules {
    Arc::new(|| Box::pin(async { tokio::task::spawn_blocking(nf_tables::find).await.map_err(io::Error::other)? }))
}

/// The ports from which the kernel selects one for a socket that names none.
const LOCAL_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Reads `net.ipv4.ip_local_port_range`.
///
/// # Errors
/// If the file cannot be read, or is not a range.
pub fn local_ports() -> io::Result<RangeInclusive<u16>> {
    let text = fs::read_to_string(LOCAL_PORTS)?;
    parse_local_ports(&text).ok_or_else(|| io::Error::other(format!("{LOCAL_PORTS} has no port range: {text:?}")))
}

fn parse_local_ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.trim().split_once(char::is_whitespace)?;
    Some(first.parse().ok()?..=last.trim().parse().ok()?)
}

#[cfg(test)]
#[path = "tests/devices.rs"]
mod tests;
