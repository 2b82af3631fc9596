//! nodelb's edges: configuration, sources, the owner task, the admin API and the command line.

#![forbid(unsafe_code)]

pub mod config;
pub mod document;
pub mod node;
pub mod source;
