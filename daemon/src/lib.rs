//! The daemon: configuration, files as a source, the owner task, the admin API, and the code that connects them.

#![forbid(unsafe_code)]

pub mod admin;
mod bound;
pub mod canary;
pub mod check;
pub mod checks;
pub mod cleanup;
pub mod config;
pub mod connections;
pub mod document;
pub mod drift;
pub mod events;
pub mod files;
#[cfg(test)]
mod generated;
mod http;
pub mod latency;
pub mod lb_health;
pub mod log;
mod netlink;
pub mod node;
pub mod notify;
pub mod reaper;
pub mod reconcile;
pub mod recorder;
pub mod rounds;
pub mod run;
pub mod sock_diag;
pub mod stale_sockets;
pub mod status;
