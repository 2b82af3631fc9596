//! Sockets of other processes on this node: those that wait for an answer in vain are ended ([`stale`], by the
//! [`reaper`]), and those that were bound to a NodePort before are reported ([`bound`]). [`sock_diag`] reads the
//! kernel's list of sockets.

pub(crate) mod bound;
pub(crate) mod netlink;
pub(crate) mod nf_tables;
pub mod reaper;
pub mod sock_diag;
pub mod stale;
