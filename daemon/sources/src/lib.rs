//! The sources besides Kubernetes: service [`files`], answers of [`dns`] servers, health [`checks`] and [`drains`]. Each has
//! a task that sends facts to the owner task, and reads from its snapshots what there is ([`OwnerHandle`]). No source uses
//! another one; what several of them need is in [`document`] and in the packages below, the core and nodelb-host.
//!
//! ```text
//!  document, owner, shares <── files, dns, checks, drains
//! ```

#![forbid(unsafe_code)]

pub mod checks;
pub mod dns;
pub mod document;
pub mod drains;
pub mod files;
mod owner;
mod shares;

pub use owner::OwnerHandle;
