//! The rules that keep strangers from changing what honest parties observe. A test removes each of them in turn, and
//! expects that the property of non-interference then fails.

/// A rule of the packet path that a test can remove. The programs have no such switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A client's RST counts only if its number is close to what the backend has acknowledged.
    ClientResetInWindow,
    /// A TCP client has proved its address only by acknowledging the number that the backend chose.
    ProofByAcknowledgment,
    /// A TCP packet to a service that belongs to no connection is never handed to routing.
    UnknownIsOwned,
    /// A client that is redirected has an address to which the device leads that its packets arrive by.
    ReversePath,
    /// The answers to packets of one service and for one reason are not taken from others.
    AnswersByService,
    /// Redirected datagrams in fragments get ids that no other datagram to the backend has.
    FragmentIds,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 6] = [
        Self::ClientResetInWindow,
        Self::ProofByAcknowledgment,
        Self::UnknownIsOwned,
        Self::ReversePath,
        Self::AnswersByService,
        Self::FragmentIds,
    ];
}
