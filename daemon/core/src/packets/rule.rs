//! The rules that keep strangers from changing what honest parties observe. A test removes each of them in turn, and
//! expects that the property of non-interference then fails.

/// A rule of the packet path that a test can remove. The programs have no such switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A client's RST counts only if its number is close to what the backend has acknowledged.
    ClientResetInWindow,
    /// A TCP client has proved its address only by acknowledging the number that the backend chose.
    ProofByAcknowledgment,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 2] = [Self::ClientResetInWindow, Self::ProofByAcknowledgment];
}
