//! Watch chaos: the Kubernetes source over the whole way, TLS and supervisor included, against a server that misbehaves.
//! After each fault the table is what the server holds, and no service that stayed lost its backend on the way.
//! `CHAOS_SEED=n` repeats a run, `CHAOS_SEQUENCES=n` changes its length.

#![expect(clippy::panic, clippy::print_stdout, reason = "a test stops where it cannot go on, and prints its seed")]

#[path = "watches/day.rs"]
mod day;
#[path = "watches/each.rs"]
mod each;
#[path = "watches/make.rs"]
mod make;
#[path = "watches/odd.rs"]
mod odd;
#[path = "watches/random.rs"]
mod random;
#[path = "watches/restart.rs"]
mod restart;
#[path = "watches/rig.rs"]
mod rig;
