//! The programs of the packet path, which translate the packets of clients outside this node: loads them with their
//! maps, and runs them on given packets. Attaches nothing and pins nothing.

mod load;
mod run;

pub use load::{LinkLayer, PacketHook, PacketLimits, PacketMaps, PacketOptions, PacketPrograms};
pub use run::{Packet, Verdict};
