//! The real BPF programs with real sockets. Each test has its own namespaces, cgroup and bpffs, and
//! needs root.

#[cfg(test)]
mod extent;
#[cfg(test)]
mod links;
#[cfg(test)]
mod part;
#[cfg(test)]
mod pod;
mod reach;
#[cfg(test)]
mod sandbox;
#[cfg(test)]
mod sockets;
