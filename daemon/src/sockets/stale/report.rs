//! The ended sockets, for the journal and for metrics.

use std::collections::BTreeMap;

use nodelb_core::model::addr::Protocol;
use nodelb_core::model::moment::Moment;
use nodelb_core::text::listed;
use nodelb_host::messages;
use tracing::info;

/// Figures since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaleSocketsReport {
    /// Whether sockets are checked and can be ended.
    pub is_working: bool,
    pub udp: u64,
    pub tcp: u64,
    pub passes: u64,
    /// Number of failed passes and of sockets that could not be ended.
    pub errors: u64,
    pub last_pass: Option<Moment>,
    /// Whether the journal has a line about sockets that could not be ended.
    pub(super) has_logged_error: bool,
}

impl StaleSocketsReport {
    pub(super) fn count(&mut self, protocol: Protocol, sockets: u64) {
        match protocol {
            Protocol::Tcp => self.tcp += sockets,
            Protocol::Udp | Protocol::Sctp => self.udp += sockets,
        }
    }
}

/// Logs one line for a pass that has ended sockets, for this reason.
pub(super) fn log(protocol: Protocol, reason: &str, destroyed: &BTreeMap<String, u64>) {
    if !destroyed.is_empty() {
        let (total, list) = counted(destroyed);
        info!(
            message_id = %messages::SOCKETS_CLOSED,
            sockets = total, "closed {total} {protocol} sockets that {reason}, so that they reconnect: {list}"
        );
    }
}

/// The sum, and a text such as `shop/dns 12, shop/web 3 and 4 more`.
fn counted(destroyed: &BTreeMap<String, u64>) -> (u64, String) {
    const SHOWN: usize = 8;
    let each = destroyed.iter().map(|(name, count)| format!("{name} {count}"));
    (destroyed.values().sum(), listed(each, SHOWN))
}
