//! The facts of this machine: its name, and its current addresses. Owns the path from interfaces and routes to
//! [`NodeFacts`](nodelb_core::model::node::NodeFacts); the core decides the purpose of each address.

pub(crate) mod addresses;
mod identity;
pub(crate) mod netlink;
pub mod watch;

pub use self::identity::Identity;
