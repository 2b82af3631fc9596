//! The daemon: configuration, files as a source, the owner task, the admin API, and the code that connects them.

#![forbid(unsafe_code)]

pub mod admin;
pub mod check;
pub mod checks;
pub mod cleanup;
pub mod config;
pub mod connections;
pub mod datapath;
pub mod devices;
pub mod dns;
mod document;
pub mod drains;
pub mod events;
pub mod files;
#[cfg(test)]
#[path = "tests/generated.rs"]
mod generated;
mod http;
pub mod kubernetes;
pub mod latency;
pub mod lb_health;
pub mod log;
pub mod node;
pub mod notify;
pub mod reconcile;
pub mod recorder;
pub mod run;
pub mod since;
pub mod sockets;
pub mod status;
#[cfg(test)]
#[path = "../../tests/world/mod.rs"]
mod world;
