//! nodelb's edges: configuration, sources, the owner task, the admin API and the command line.

#![forbid(unsafe_code)]

pub mod admin;
pub mod apiserver;
mod bound;
pub mod canary;
pub mod check;
pub mod checks;
pub mod cleanup;
pub mod cli;
pub mod clock;
pub mod config;
pub mod connections;
pub mod diagnose;
pub mod document;
pub mod drift;
pub mod events;
pub mod exit;
#[cfg(test)]
mod generated;
pub mod latency;
pub mod lb_health;
mod listen;
pub mod log;
pub mod moves;
mod netlink;
pub mod node;
pub mod notify;
pub mod observe;
pub mod reaper;
pub mod reconcile;
pub mod recorder;
pub mod rounds;
pub mod run;
pub mod sock_diag;
pub mod source;
mod state;
mod threads;
