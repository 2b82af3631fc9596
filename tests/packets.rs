//! The real BPF objects with real sockets: each test has namespaces, a cgroup and a bpffs of its own, and needs root.

#[cfg(test)]
mod links;
#[cfg(test)]
mod pod;
#[cfg(test)]
mod sandbox;
#[cfg(test)]
mod sockets;
