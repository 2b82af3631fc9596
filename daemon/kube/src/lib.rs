//! The Kubernetes side of nodelb: connections to an apiserver and their credentials ([`apiserver`]), the objects of the
//! Kubernetes API ([`api`]), the source that watches them ([`source`]) and the Events that nodelb writes ([`events`]).
//! This package depends on the core; the daemon and the command line depend on this package.
//!
//! ```text
//!  null, time <── apiserver <── api <── source, events
//! ```
//!
//! The package also contains modules that it shares with the daemon: [`clock`], [`state_file`] (files that are replaced
//! atomically) and [`threads`] (work that may block forever). The core cannot contain them, because it must neither
//! block nor read a clock.

#![forbid(unsafe_code)]

pub mod api;
pub mod apiserver;
pub mod clock;
pub mod events;
pub mod null;
pub mod source;
pub mod state_file;
pub mod threads;
pub mod time;
