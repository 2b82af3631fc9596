//! The rules that keep strangers from changing what honest parties observe. A test removes each of them in turn, and
//! expects that the property of non-interference then fails.

/// A rule of the packet path that a test can remove. The programs have no such switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A client's RST counts only if its numbers are those of the connection.
    ClientResetInWindow,
    /// A backend's RST counts only if its numbers are those of the connection.
    BackendResetInWindow,
    /// A FIN counts only if its numbers are those of the connection.
    FinInWindow,
    /// A connection that goes on after a RST has not ended.
    ResetTakenBack,
    /// What a side acknowledges is noted only if the packet's numbers are those of the connection.
    AcknowledgmentInWindow,
    /// A backend's answer counts only if it acknowledges the client's SYN.
    AnswerByAcknowledgment,
    /// A TCP client has proved its address only by acknowledging the number that the backend chose.
    ProofByAcknowledgment,
    /// A SYN ends no connection of which the backend answers.
    SynOfAnsweredConnection,
    /// A UDP flow is admitted again when the service's addresses have changed.
    FlowAdmittedAgain,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 9] = [
        Self::ClientResetInWindow,
        Self::BackendResetInWindow,
        Self::FinInWindow,
        Self::ResetTakenBack,
        Self::AcknowledgmentInWindow,
        Self::AnswerByAcknowledgment,
        Self::ProofByAcknowledgment,
        Self::SynOfAnsweredConnection,
        Self::FlowAdmittedAgain,
    ];
}
