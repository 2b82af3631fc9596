//! The real BPF programs with real sockets. Each test has its own namespaces, cgroup and bpffs, and
//! needs root.

#[cfg(test)]
mod crash_points;
#[cfg(test)]
mod extent;
#[cfg(test)]
mod links;
#[cfg(test)]
mod part;
#[cfg(test)]
mod pod;
#[cfg(test)]
mod reach;
#[cfg(test)]
mod sandbox;
#[cfg(test)]
mod sockets;
