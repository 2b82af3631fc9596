//! The Kubernetes side of nodelb: connections to an apiserver and their credentials ([`apiserver`]), the objects of the
//! Kubernetes API ([`api`]), the source that watches them ([`source`]) and the Events that nodelb writes ([`events`]).
//! This package depends on the core and nodelb-host; the daemon and the command line depend on this package.
//!
//! ```text
//!  defaults, null, time <── apiserver <── api <── source, events
//! ```

#![forbid(unsafe_code)]

pub mod api;
pub mod apiserver;
mod defaults;
pub mod events;
pub mod null;
pub mod source;
pub mod time;
