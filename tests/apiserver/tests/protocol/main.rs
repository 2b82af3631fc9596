//! The protocol, over TLS on loopback, as a client meets it: served as it should be, and with every fault.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop where it is")]

mod client;
mod faults;
mod serving;
