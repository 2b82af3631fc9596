//! When and why the programs of `bpf/sweep.bpf.c` delete a connection.

/// How many seconds a connection is kept without a packet in either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepTimeouts {
    /// The backend or the client has not answered.
    pub handshake: u32,
    /// TCP: both ends have closed the connection.
    pub closed: u32,
    /// TCP: one end has reset the connection.
    pub reset: u32,
    /// TCP connections that are open.
    pub tcp_idle: u32,
    /// UDP flows that were answered.
    pub udp_idle: u32,
    /// TCP connections with direct return that are open.
    pub forwarded_idle: u32,
}

/// Why a connection is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SweepReason {
    Handshake,
    Closed,
    Reset,
    /// No packet came for too long.
    Idle,
}

/// A time in which connections began, of which the outcomes are counted; in seconds of `CLOCK_MONOTONIC_COARSE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// The last second before it.
    pub after: u32,
    pub until: u32,
}
