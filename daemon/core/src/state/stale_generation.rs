//! Counters that show whether sockets may have become stale since the last check.

use crate::model::addr::Protocol;

/// The number of changes that may have left sockets stale. It never wraps. Only inequality with an earlier value has a
/// meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StaleGeneration {
    pub udp: u64,
    pub tcp: u64,
}

impl StaleGeneration {
    pub(crate) fn note(&mut self, protocol: Protocol) {
        match protocol {
            Protocol::Udp => self.udp += 1,
            Protocol::Tcp => self.tcp += 1,
            Protocol::Sctp => {}
        }
    }
}
