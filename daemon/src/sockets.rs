//! Sockets of other processes on this node: those that wait for an answer in vain are ended ([`stale`], by the
//! [`reaper`]), and those that were bound to a NodePort before are reported ([`bound`]). [`conntrack`] reads the
//! kernel's list of masqueraded connections, [`nf_tables`] looks for kube-proxy's rules, and
//! [`xfrm`] reads the policies of IPsec.

pub(crate) mod bound;
pub(crate) mod conntrack;
mod netfilter;
pub mod nf_tables;
pub mod reaper;
pub mod stale;
pub(crate) mod xfrm;
