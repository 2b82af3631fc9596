//! What the honest parties observe, and what differs when strangers take part.

use std::fmt::Write as _;

use crate::honest::{COUNT, User};
use crate::socket::Event;

/// What the honest parties have observed: the client and the backends of each user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) clients: [Vec<(u8, Event)>; COUNT as usize],
    pub(crate) backends: [Vec<(u8, Event)>; COUNT as usize],
    /// Bytes of honest parties that strangers have got.
    pub(crate) leaks: Vec<Vec<u8>>,
}

/// What differs; empty if nothing does.
pub(crate) fn compare(alone: &Observed, among: &Observed) -> String {
    let mut text = String::new();
    for user in 0..COUNT {
        let User { client, service, .. } = User::of(user);
        let user = usize::from(user);
        for (what, alone, among) in [
            ("client", &alone.clients[user], &among.clients[user]),
            ("backend", &alone.backends[user], &among.backends[user]),
        ] {
            if alone != among {
                let _ = writeln!(
                    text,
                    "{what} of {client} > {service}\n  alone         {alone:?}\n  with strangers {among:?}"
                );
            }
        }
    }
    if !among.leaks.is_empty() {
        let _ = writeln!(text, "a stranger has got bytes of an honest party");
    }
    text
}
