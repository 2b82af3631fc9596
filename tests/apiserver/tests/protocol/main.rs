//! The protocol over TLS on loopback, as a client sees it: without faults and with each of them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop where it is")]

mod client;
mod faults;
mod serving;
