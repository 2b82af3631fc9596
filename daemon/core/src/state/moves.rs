//! Whether sockets may have to move on since somebody last looked.

use crate::model::addr::Protocol;

/// How often something has changed so that sockets may have to move on; wraps never. Only whether a number is another
/// than before means anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// For UDP sockets.
    pub udp: u64,
    /// For TCP sockets.
    pub tcp: u64,
}

impl Moves {
    pub(crate) fn note(&mut self, protocol: Protocol) {
        match protocol {
            Protocol::Udp => self.udp += 1,
            Protocol::Tcp => self.tcp += 1,
            Protocol::Sctp => {}
        }
    }
}
