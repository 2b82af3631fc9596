//! The state while a program handles a packet.

use crate::packets::connections::Tables;
use crate::packets::headers::Headers;
use crate::packets::node::{Node, Packet, Reason, Verdict};
use crate::packets::reject;
use crate::state::entries::ServiceId;

/// The state while a program handles a packet.
pub(super) struct HookState<'a> {
    pub(super) node: Node<'a>,
    /// The tables, with the changes that the packet has made so far.
    pub(super) tables: Tables,
    /// The random number generator.
    pub(super) random: &'a mut dyn FnMut() -> u32,
    pub(super) packet: &'a Packet,
    pub(super) headers: Headers,
    /// The service of the packet; that of no service if none is found.
    pub(super) service: ServiceId,
    /// The id of the datagram of the fragment, if it is redirected.
    pub(super) new_id: Option<u32>,
}

/// What becomes of a packet, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) verdict: Verdict,
    /// The frame that continues, leaves or is sent back.
    pub(super) bytes: Vec<u8>,
    pub(super) reason: Option<Reason>,
}

impl HookState<'_> {
    /// Leaves the packet to the network stack as it is.
    pub(super) fn next(&self) -> Decision {
        Decision { verdict: Verdict::Next, bytes: self.packet.bytes.clone(), reason: None }
    }

    pub(super) fn discard(&self, reason: Reason) -> Decision {
        Decision { verdict: Verdict::Drop, bytes: self.packet.bytes.clone(), reason: Some(reason) }
    }

    /// Sends the answer back, unless there is none, answers are off, the packet must not be answered, or too many
    /// answers were sent in this second.
    pub(super) fn answer(&mut self, answer: Option<Vec<u8>>, reason: Reason) -> Decision {
        let is_answered = self.node.settings.answers && reject::is_answerable(&self.headers, reason);
        let Some(bytes) = answer.filter(|_| is_answered) else { return self.discard(reason) };
        if !reject::may_answer(&mut self.tables, self.node.now(), (self.service, reason)) {
            return self.discard(Reason::AnswerRate);
        }
        Decision { verdict: Verdict::Reply, bytes, reason: Some(reason) }
    }

    pub(super) fn answer_icmp(&mut self, error: reject::IcmpError, reason: Reason) -> Decision {
        let answer = reject::icmp_error(&self.packet.bytes, &self.headers, error);
        self.answer(answer, reason)
    }

    /// Answers with a TCP RST.
    pub(super) fn answer_reset(&mut self, reason: Reason) -> Decision {
        let answer = reject::reset(&self.packet.bytes, &self.headers);
        self.answer(answer, reason)
    }
}
