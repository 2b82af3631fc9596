//! nodelb's edges: configuration, sources, the owner task, the admin API and the command line.

#![forbid(unsafe_code)]

pub mod admin;
pub mod canary;
pub mod cli;
pub mod clock;
pub mod exit;
pub mod log;
pub mod notify;
pub mod reconcile;
