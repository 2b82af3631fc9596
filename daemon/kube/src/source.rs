//! Kubernetes as a source: the watches that bring its objects, and what follows from them.
//!
//! What is read ([`watch`]) is compared with what is known ([`store`]) and told to the owner ([`run`]). The store is pure.

mod cidrs;
pub mod live;
pub mod remember;
mod report;
mod run;
mod save;
pub mod store;
mod trouble;
pub mod watch;

pub use run::{KubernetesSource, run};
pub use save::Memory;
