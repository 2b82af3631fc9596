//! What the honest parties observe, and what differs when strangers take part.

use std::fmt::Write as _;

use crate::honest::{COUNT, User, WITH_AFFINITY};
use crate::socket::Event;
use crate::tag::Label;

/// What the honest parties have observed: the client and the backends of each user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) clients: [Vec<(u8, Event)>; COUNT as usize],
    pub(crate) backends: [Vec<(u8, Event)>; COUNT as usize],
    /// Bytes of honest parties that strangers have got.
    pub(crate) leaks: Vec<Vec<u8>>,
    /// Packets of honest clients that the node has sent back to the network. No flood excuses that.
    pub(crate) sent_back: Vec<String>,
    /// Packets that the router sends back to the node. No flood excuses that.
    pub(crate) circling: Vec<String>,
    /// From this connection of each user on, it is excused that it is refused or reset, see [`Excuse`], or that it is not.
    pub(crate) excused: [Option<u8>; COUNT as usize],
    /// The connections that sent another SYN, because the backend took the first one for a part of another connection. They, and
    /// those that waited, may have the backend before a change or after it, and a backend that acts may not have received a FIN.
    pub(crate) delayed: Vec<Label>,
}

impl Observed {
    /// Excuses the user from this connection on.
    pub(crate) fn excuse(&mut self, user: u8, first: u8) {
        let excused = &mut self.excused[usize::from(user)];
        *excused = Some(excused.map_or(first, |before| before.min(first)));
    }
}

/// What strangers may change according to docs/packets-behaviour.md: a TCP connection that is new during a flood may be
/// refused, reset, or known to the backend alone until the client sends again. Connections from before are not affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excuse {
    /// Handshakes of strangers, at least as many as there are free source ports, came between the client's SYN and its proof.
    Flood,
    /// Connections of strangers with addresses of their own have taken ports and entries.
    Crowd,
    /// Strangers have displaced the entry of a connection with direct return, and its service has lost the backend.
    Evicted,
}

impl Excuse {
    /// The least number of handshakes or connections.
    pub(crate) const fn least(self) -> usize {
        match self {
            Self::Flood => 8,
            Self::Crowd => 4,
            Self::Evicted => 12,
        }
    }
}

type Log = [(u8, Event)];

fn until(log: &Log, end: u8) -> Vec<&(u8, Event)> {
    log.iter().filter(|(connection, _)| *connection < end).collect()
}

/// Whether the client's log is as without strangers, but for the excuse.
fn is_excused(alone: &Log, among: &Log, excused: Option<u8>) -> bool {
    excused.map_or(alone == among, |connection| until(alone, connection) == until(among, connection))
}

/// What the backends of a user have observed. Session affinity selects any backend for a client at first; with direct return
/// anyone can begin the client's next connection, which then keeps a backend that the service loses for a minute. The way to
/// another backend may need other segments.
fn seen_by_backends(log: &Log, has_any: bool, delayed: Option<u8>) -> Vec<(u8, Event)> {
    let is_delayed = |connection: u8| delayed.is_some_and(|first| first <= connection);
    let any = |(connection, event): &(u8, Event)| match event {
        Event::PeerClosed if is_delayed(*connection) => None,
        Event::Accepted(_) if has_any || is_delayed(*connection) => Some((*connection, Event::Accepted(String::new()))),
        event => Some((*connection, event.clone())),
    };
    let mut seen: Vec<(u8, Event)> = Vec::new();
    for (connection, event) in log.iter().filter_map(any) {
        match (&event, seen.last_mut()) {
            (Event::Got(number, kind, length), Some((last, Event::Got(last_number, last_kind, sum))))
                if (connection, *number, *kind) == (*last, *last_number, *last_kind) =>
            {
                *sum += length;
            }
            _ => seen.push((connection, event)),
        }
    }
    seen
}

/// What differs; empty if nothing does.
pub(crate) fn compare(alone: &Observed, among: &Observed) -> String {
    let mut text = String::new();
    for number in 0..COUNT {
        let User { client, service, is_direct, .. } = User::of(number);
        let user = usize::from(number);
        let excused = [alone, among].into_iter().filter_map(|observed| observed.excused[user]).min();
        let (one, other) = (&alone.clients[user], &among.clients[user]);
        if !is_excused(one, other, excused) {
            let _ =
                writeln!(text, "client of {client} > {service}\n  alone          {one:?}\n  with strangers {other:?}");
        }
        let own = among.delayed.iter().filter(|label| label.user == number);
        let delayed = own.map(|label| label.connection).min();
        let seen = |log: &Log| seen_by_backends(log, number == WITH_AFFINITY || is_direct, delayed);
        let (one, other) = (seen(&alone.backends[user]), seen(&among.backends[user]));
        if !is_excused(&one, &other, excused) {
            let _ =
                writeln!(text, "backend of {client} > {service}\n  alone          {one:?}\n  with strangers {other:?}");
        }
    }
    if alone.sent_back != among.sent_back {
        let _ =
            writeln!(text, "sent back\n  alone          {:?}\n  with strangers {:?}", alone.sent_back, among.sent_back);
    }
    if !among.circling.is_empty() {
        let _ = writeln!(text, "circling: {:?}", among.circling);
    }
    if !among.leaks.is_empty() {
        let _ = writeln!(text, "a stranger has got bytes of an honest party");
    }
    text
}
