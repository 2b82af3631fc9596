//! The state while a program handles a packet.

use nodelb_core::model::addr::Addr;
use nodelb_core::state::entries::ServiceId;

use crate::connections::Tables;
use crate::headers::Headers;
use crate::node::{Node, Packet, Reason, Verdict};
use crate::reject;

/// The state while a program handles a packet.
pub(crate) struct HookState<'a> {
    pub(crate) node: Node<'a>,
    /// The tables, with the changes that the packet has made so far.
    pub(crate) tables: Tables,
    /// The random number generator.
    pub(crate) random: &'a mut dyn FnMut() -> u32,
    pub(crate) packet: &'a Packet,
    pub(crate) headers: Headers,
    /// The service of the packet; that of no service if none is found.
    pub(crate) service: ServiceId,
    /// The id of the datagram of the fragment, if it is redirected.
    pub(crate) new_id: Option<u32>,
    /// The packet came in a tunnel to this address.
    pub(crate) tunnel_end: Option<Addr>,
    /// The next hop of a packet that is forwarded unchanged.
    pub(crate) next_hop: Option<Addr>,
}

/// What is done with a packet, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) verdict: Verdict,
    /// The frame that continues, leaves or is sent back.
    pub(crate) bytes: Vec<u8>,
    pub(crate) reason: Option<Reason>,
}

impl HookState<'_> {
    /// Leaves the packet to the network stack as it is.
    pub(crate) fn next(&self) -> Decision {
        Decision { verdict: Verdict::Next, bytes: self.packet.bytes.clone(), reason: None }
    }

    pub(crate) fn discard(&self, reason: Reason) -> Decision {
        Decision { verdict: Verdict::Drop, bytes: self.packet.bytes.clone(), reason: Some(reason) }
    }

    /// Sends the answer back, unless there is none, answers are off, the packet must not be answered, or too many
    /// answers were sent in this second.
    pub(crate) fn answer(&mut self, answer: Option<Vec<u8>>, reason: Reason) -> Decision {
        let is_answered = self.node.settings.answers && reject::is_answerable(&self.headers, reason);
        let Some(bytes) = answer.filter(|_| is_answered) else { return self.discard(reason) };
        if !reject::may_answer(&mut self.tables, self.node.now(), (self.service, reason)) {
            return self.discard(Reason::AnswerRate);
        }
        Decision { verdict: Verdict::Reply, bytes, reason: Some(reason) }
    }

    pub(crate) fn answer_icmp(&mut self, error: reject::IcmpError, reason: Reason) -> Decision {
        let answer = reject::icmp_error(&self.packet.bytes, &self.headers, error);
        self.answer(answer, reason)
    }

    /// Answers with a TCP RST.
    pub(crate) fn answer_reset(&mut self, reason: Reason) -> Decision {
        let answer = reject::reset(&self.packet.bytes, &self.headers);
        self.answer(answer, reason)
    }
}
