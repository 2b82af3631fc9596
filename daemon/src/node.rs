//! The facts of this machine: its name, and its current addresses. Owns the path from interfaces and routes to
//! [`NodeFacts`](nodelb_core::model::node::NodeFacts); the core decides which addresses matter for which purpose.

pub(crate) mod addresses;
mod identity;
pub(crate) mod netlink;
pub mod watch;

pub use self::identity::Identity;
