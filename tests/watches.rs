//! Faults of watches: the Kubernetes source with TLS and supervisor against a faulty server. After
//! each fault the table equals the content of the server, and no permanent service has lost its
//! backend meanwhile. `CHAOS_SEED=n` repeats a run, `CHAOS_SEQUENCES=n` sets its length.

#![expect(clippy::panic, clippy::print_stdout, reason = "a test stops where it cannot go on, and prints its seed")]

mod extent;

#[path = "watches/faults.rs"]
mod faults;
#[path = "watches/long_outage.rs"]
mod long_outage;
#[path = "watches/malformed.rs"]
mod malformed;
#[path = "watches/objects.rs"]
mod objects;
#[path = "watches/random.rs"]
mod random;
#[path = "watches/restart.rs"]
mod restart;
#[path = "watches/rig.rs"]
mod rig;
#[path = "watches/scopes.rs"]
mod scopes;
