//! The daemon: configuration, the node, the owner task, the admin API, and the code that connects them with the sources.

#![forbid(unsafe_code)]

pub mod admin;
pub mod check;
pub mod cleanup;
pub mod config;
pub mod connections;
pub mod datapath;
pub mod devices;
pub mod events;
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
