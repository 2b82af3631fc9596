//! One end of a TCP connection, as RFC 9293 and RFC 5961 describe it. It repeats only its SYN: a packet that is lost
//! afterwards is not sent again, so that the loss shows.

use std::collections::VecDeque;

use nodelb_programs::headers::tcp_flags::{ACK, FIN, RST, SYN};

use crate::tag::{Kind, Label, Message, TAG, answering};
use crate::wire::Segment;

/// For these nanoseconds, an end repeats no acknowledgement of a packet that does not fit: Linux'
/// `tcp_invalid_ratelimit`.
const INVALID_NS: u64 = 500_000_000;

/// An end forgets a handshake, and a connection that has ended, after these nanoseconds.
const FORGET_NS: u64 = 60_000_000_000;

/// The largest part of a message in a segment, in bytes: a multiple of [`TAG`].
const MOST_DATA: usize = 1_440;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    SynSent,
    SynReceived,
    Established,
    /// This end has closed, the other one has not.
    FinSent,
    /// The other end has closed, this one has not.
    CloseWait,
    /// Both ends have closed, the other one first.
    LastAck,
    TimeWait,
    Closed,
}

/// What an end observes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A client's connection is established.
    Connected,
    /// A backend's, with its name.
    Accepted(String),
    /// A message came, with its length.
    Got(u8, Kind, usize),
    /// Bytes came that the other end has not sent.
    Mixed(Vec<u8>),
    /// The other end has closed the connection.
    PeerClosed,
    Reset,
    Refused,
    TimedOut,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Socket {
    pub(crate) state: State,
    /// The honest connection; `None` if it is a stranger's.
    pub(crate) label: Option<Label>,
    is_client: bool,
    next: u32,
    /// What the other end sends next.
    expected: u32,
    limit: usize,
    unacknowledged: VecDeque<(u32, Vec<u8>)>,
    answered_invalid: Option<u64>,
    since: u64,
    /// Whether it goes on sending when the other end has closed.
    pub(crate) stays_open: bool,
}

/// What an end does with a segment.
#[derive(Debug, Default)]
pub(crate) struct Result {
    pub(crate) sent: Vec<Segment>,
    pub(crate) events: Vec<Event>,
}

impl Result {
    fn send(mut self, flags: u8, (seq, ack): (u32, u32), data: Vec<u8>) -> Self {
        self.sent.push(Segment { flags, seq, ack, data });
        self
    }

    fn see(mut self, event: Event) -> Self {
        self.events.push(event);
        self
    }
}

impl Socket {
    /// A client's end, and its SYN.
    pub(crate) fn connect(label: Option<Label>, first: u32, now: u64) -> (Self, Segment) {
        let socket = Self {
            state: State::SynSent,
            label,
            is_client: true,
            next: first.wrapping_add(1),
            expected: 0,
            limit: MOST_DATA,
            unacknowledged: VecDeque::new(),
            answered_invalid: None,
            since: now,
            stays_open: false,
        };
        (socket, Segment { flags: SYN, seq: first, ..Segment::default() })
    }

    /// The SYN again.
    pub(crate) fn syn(&self) -> Segment {
        Segment { flags: SYN, seq: self.next.wrapping_sub(1), ..Segment::default() }
    }

    /// A backend's end after this SYN, and its answer.
    pub(crate) fn accept(syn: &Segment, now: u64) -> (Self, Segment) {
        let (label, first) = (Label::of_number(syn.seq), answering(syn.seq));
        let (mut socket, _) = Self::connect(label, first, now);
        socket.state = State::SynReceived;
        socket.is_client = false;
        socket.expected = syn.seq.wrapping_add(1);
        let segment = Segment { flags: SYN | ACK, seq: first, ack: socket.expected, ..Segment::default() };
        (socket, segment)
    }

    /// Whether a SYN finds the port free.
    pub(crate) fn gives_way(&self, syn: &Segment, now: u64) -> bool {
        let is_old = now - self.since >= FORGET_NS;
        match self.state {
            State::Closed => true,
            State::SynReceived => is_old,
            // RFC 6191: a SYN with a higher number opens the next connection.
            State::TimeWait => is_old || syn.seq.wrapping_sub(self.expected) < 1 << 31,
            _ => false,
        }
    }

    /// Sends a message.
    pub(crate) fn say(&mut self, bytes: &[u8]) -> Vec<Segment> {
        let limit = self.limit;
        let parts = bytes.chunks(limit).map(|part| {
            let seq = self.next;
            self.next = seq.wrapping_add(u32::try_from(part.len()).unwrap());
            self.unacknowledged.push_back((seq, part.to_vec()));
            Segment { flags: ACK | 8, seq, ack: self.expected, data: part.to_vec() }
        });
        parts.collect()
    }

    /// Closes this end.
    pub(crate) fn close(&mut self) -> Segment {
        self.state = if self.state == State::Established { State::FinSent } else { State::LastAck };
        let segment = Segment { flags: FIN | ACK, seq: self.next, ack: self.expected, ..Segment::default() };
        self.next = self.next.wrapping_add(1);
        segment
    }

    /// Ends the connection at once.
    pub(crate) fn abort(&mut self) -> Segment {
        self.state = State::Closed;
        Segment { flags: RST | ACK, seq: self.next, ack: self.expected, ..Segment::default() }
    }

    /// Whether all that was sent has arrived.
    pub(crate) fn is_quiet(&self) -> bool {
        self.unacknowledged.is_empty()
    }

    /// Sends what is unacknowledged again if the error about a packet with this number is about this connection.
    pub(crate) fn too_big(&mut self, seq: u32, mtu: usize, headers: usize) -> Vec<Segment> {
        if !self.unacknowledged.iter().any(|(sent, _)| *sent == seq) || mtu < headers + 500 {
            return Vec::new();
        }
        self.limit = (mtu - headers) / TAG * TAG;
        let first = self.unacknowledged.front().map_or(self.next, |(first, _)| *first);
        let data: Vec<u8> = self.unacknowledged.drain(..).flat_map(|(_, data)| data).collect();
        self.next = first;
        self.say(&data)
    }

    /// Takes a segment.
    pub(crate) fn receive(&mut self, segment: &Segment, now: u64) -> Result {
        match self.state {
            State::SynSent => self.in_syn_sent(segment),
            _ => self.synchronised(segment, now),
        }
    }

    fn in_syn_sent(&mut self, segment: &Segment) -> Result {
        let (has, result) = (|flag: u8| segment.flags & flag != 0, Result::default());
        if has(ACK) && segment.ack != self.next {
            return if has(RST) { result } else { result.send(RST, (segment.ack, 0), Vec::new()) };
        }
        if has(RST) {
            if !has(ACK) {
                return result;
            }
            self.state = State::Closed;
            return result.see(Event::Refused);
        }
        if !(has(SYN) && has(ACK)) {
            return result;
        }
        self.state = State::Established;
        self.expected = segment.seq.wrapping_add(1);
        result.see(Event::Connected).send(ACK, (self.next, self.expected), Vec::new())
    }

    /// An acknowledgement of what does not fit, not too often.
    fn challenge(&mut self, now: u64) -> Result {
        if self.answered_invalid.is_some_and(|last| now - last < INVALID_NS) {
            return Result::default();
        }
        self.answered_invalid = Some(now);
        Result::default().send(ACK, (self.next, self.expected), Vec::new())
    }

    fn synchronised(&mut self, segment: &Segment, now: u64) -> Result {
        let has = |flag: u8| segment.flags & flag != 0;
        let is_next = segment.seq == self.expected;
        if has(RST) {
            if !is_next {
                return Result::default();
            }
            let was_open = !matches!(self.state, State::SynReceived | State::TimeWait | State::LastAck);
            self.state = State::Closed;
            return if was_open { Result::default().see(Event::Reset) } else { Result::default() };
        }
        if self.state == State::SynReceived && has(SYN) && segment.seq.wrapping_add(1) == self.expected {
            let first = self.next.wrapping_sub(1);
            return Result::default().send(SYN | ACK, (first, self.expected), Vec::new());
        }
        if has(SYN) || !is_next {
            return self.challenge(now);
        }
        if !has(ACK) {
            return Result::default();
        }
        let first = self.unacknowledged.front().map_or(self.next, |(seq, _)| *seq);
        let least = if self.state == State::SynReceived { self.next } else { first.wrapping_sub(1 << 20) };
        if segment.ack.wrapping_sub(least) > self.next.wrapping_sub(least) {
            let is_handshake = self.state == State::SynReceived;
            let reset = |result: Result| result.send(RST, (segment.ack, 0), Vec::new());
            return if is_handshake { reset(Result::default()) } else { self.challenge(now) };
        }
        self.acknowledged(segment, now)
    }

    /// A segment that is the next one, and acknowledges something that was sent.
    fn acknowledged(&mut self, segment: &Segment, now: u64) -> Result {
        let mut result = Result::default();
        if self.state == State::SynReceived {
            self.state = State::Established;
            result = result.see(Event::Accepted(String::new()));
        }
        if self.state == State::LastAck && segment.ack == self.next {
            self.state = State::Closed;
        }
        self.unacknowledged.retain(|(seq, data)| {
            let end = seq.wrapping_add(u32::try_from(data.len()).unwrap());
            end.wrapping_sub(segment.ack) < 1 << 31 && end != segment.ack
        });
        if !segment.data.is_empty() && matches!(self.state, State::Established | State::FinSent) {
            self.expected = self.expected.wrapping_add(u32::try_from(segment.data.len()).unwrap());
            result = self.take(&segment.data, result);
        }
        if segment.flags & FIN != 0 && matches!(self.state, State::Established | State::FinSent) {
            self.expected = self.expected.wrapping_add(1);
            result = result.see(Event::PeerClosed);
            if self.state == State::Established && self.stays_open {
                self.state = State::CloseWait;
                result = result.send(ACK, (self.next, self.expected), Vec::new());
            } else if self.state == State::Established {
                self.state = State::LastAck;
                let fin = self.close();
                result.sent.push(fin);
            } else {
                (self.state, self.since) = (State::TimeWait, now);
                result = result.send(ACK, (self.next, self.expected), Vec::new());
            }
        }
        result
    }

    fn take(&mut self, data: &[u8], mut result: Result) -> Result {
        let message = Message::read(data).filter(|message| Some(message.label) == self.label);
        match (message, self.label) {
            (Some(message), _) => {
                result = result.see(Event::Got(message.number, message.kind, data.len()));
                if message.kind == Kind::Question && !self.is_client {
                    let answer = Message { kind: Kind::Answer, ..message }.bytes(data.len());
                    result.sent.extend(self.say(&answer));
                    return result;
                }
            }
            (None, Some(_)) => result = result.see(Event::Mixed(data.to_vec())),
            (None, None) => {}
        }
        result.send(ACK, (self.next, self.expected), Vec::new())
    }
}
