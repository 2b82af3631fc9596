//! The rules that keep strangers from changing what honest parties observe. A test removes each of them in turn, and
//! expects that the property of non-interference then fails. Six rules are about something else, which their text
//! names; packet cases show them.

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
    /// A TCP packet to a service that belongs to no connection is never handed to routing.
    UnknownIsOwned,
    /// The address of a redirected client is one that the device of its packets leads to. Not about what honest parties
    /// observe: where the device has no such filter, strangers may send with any address.
    ReversePath,
    /// The answers to packets of one service and for one reason are not taken from others.
    AnswersByService,
    /// Redirected datagrams in fragments get ids that no other datagram to the backend has.
    FragmentIds,
    /// A SYN ends no connection with a backend that answers.
    SynOfAnsweredConnection,
    /// A backend is silent only if it does not answer what the client has sent, as the numbers show.
    SilenceAfterQuestion,
    /// A UDP flow is admitted again when the service's addresses have changed. Not about strangers: the owner of the service
    /// has changed which clients it admits.
    FlowAdmittedAgain,
    /// Packets at the device of a pod have no part in the connections of clients outside, nor the other way round.
    PodsShareNothing,
    /// UDP flows have at most half of the entries for connections.
    UdpHasHalf,
    /// Handshakes and UDP flows give way to a new connection that finds no free port.
    FlowsGiveWay,
    /// A UDP flow that is not idle keeps its port: the new client would get its answers.
    ActiveFlowKeepsPort,
    /// A connection that has ended gives its port up to the node's network stack. Not about strangers: nodelb itself would
    /// take what belongs to the node.
    StackTakesPort,
    /// The answer to a SYN belongs to no connection that has ended. Not about strangers, for the same reason.
    AnswerOfEndedConnection,
    /// A packet of the node's network stack gets another port if a connection has its own: its answer would reach that one's
    /// client.
    StackGetsOtherPort,
    /// A client that the node masquerades with the port of a service gets another port. Not about strangers: the service
    /// itself would take the client's answers.
    ClientGetsOtherPort,
    /// With direct return, a SYN does not choose another backend while the client may still use the connection.
    SynOfForwardedConnection,
    /// With direct return, a FIN counts only if every packet so far has gone on from the one that began the entry: that may
    /// have been a stranger's.
    FarNumberIsDoubted,
    /// With direct return, a SYN changes nothing about a connection that is idle, if the ring still has its backend.
    IdleConnectionStays,
    /// With direct return, packets of a connection that has lost its entry go to the backend that the ring has.
    ForwardedByRing,
    /// What another node seems to have sent here ends a connection with another backend only if the ring leads to this node.
    SentOnByRing,
    /// A packet that came in a tunnel stays on this node, at the backend where the tunnel ends. Not about strangers: two
    /// nodes that disagree would send it to each other.
    UnwrappedStays,
    /// Only a tunnel to a backend of the service ends at nodelb, or one with packets of a connection that the node translates.
    /// Not about strangers: the tunnels of others would end there, too.
    OnlyOwnTunnels,
}

impl Rule {
    pub const ALL: [Self; 29] = [
        Self::ClientResetInWindow,
        Self::BackendResetInWindow,
        Self::FinInWindow,
        Self::ResetTakenBack,
        Self::AcknowledgmentInWindow,
        Self::AnswerByAcknowledgment,
        Self::ProofByAcknowledgment,
        Self::UnknownIsOwned,
        Self::ReversePath,
        Self::AnswersByService,
        Self::FragmentIds,
        Self::SynOfAnsweredConnection,
        Self::SilenceAfterQuestion,
        Self::FlowAdmittedAgain,
        Self::PodsShareNothing,
        Self::UdpHasHalf,
        Self::FlowsGiveWay,
        Self::ActiveFlowKeepsPort,
        Self::StackTakesPort,
        Self::AnswerOfEndedConnection,
        Self::StackGetsOtherPort,
        Self::ClientGetsOtherPort,
        Self::SynOfForwardedConnection,
        Self::FarNumberIsDoubted,
        Self::IdleConnectionStays,
        Self::ForwardedByRing,
        Self::SentOnByRing,
        Self::UnwrappedStays,
        Self::OnlyOwnTunnels,
    ];
}
