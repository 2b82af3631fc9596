//! The packet path's BPF programs on single packets, without a daemon: verdict, bytes and map entries. Each test has
//! its own namespaces and needs root.

#[cfg(test)]
mod pod;
#[cfg(test)]
#[path = "packet_programs/mod.rs"]
mod programs;
#[cfg(test)]
mod reach;
#[cfg(test)]
mod sandbox;
