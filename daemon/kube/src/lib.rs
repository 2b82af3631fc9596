//! Everything of nodelb that talks to an apiserver: connections and credentials ([`apiserver`]), Kubernetes' objects ([`api`]),
//! the source that watches them ([`source`]) and the Events that are written ([`events`]). Knows the core; the daemon and the
//! command line use it.
//!
//! ```text
//!  null, time <── apiserver <── api <── source, events
//! ```
//!
//! What these share with the daemon lies here, too, since there is no package below but the core, which may neither block nor
//! read a clock: [`clock`], [`state`] (files that are replaced whole) and [`threads`] (work that may block for ever).

#![forbid(unsafe_code)]

pub mod api;
pub mod apiserver;
pub mod clock;
pub mod events;
pub mod null;
pub mod source;
pub mod state;
pub mod threads;
pub mod time;
