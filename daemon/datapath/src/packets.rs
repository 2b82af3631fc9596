//! The programs of the packet path, which translate the packets of clients outside this node: loads them with their
//! maps, runs them on given packets, and deletes connections that have ended. Attaches nothing and pins nothing.

mod load;
mod run;
mod sweep;

pub use load::{LinkLayer, PacketHook, PacketLimits, PacketMaps, PacketOptions, PacketPrograms};
pub use run::{Packet, Verdict};
pub use sweep::{Sweep, SweepReason, SweepTimeouts, Swept};
