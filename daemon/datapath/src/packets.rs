//! The programs of the packet path, which translate the packets of clients outside this node: loads them with their
//! maps, keeps the maps of connections over restarts, and runs the programs on given packets. The programs are attached
//! to devices by [`crate::DeviceHooks`].

mod load;
pub(crate) mod maps;
mod run;
pub(crate) mod settings;
pub(crate) mod start;

pub use load::{LinkLayer, PacketHook, PacketLimits, PacketMaps, PacketOptions, PacketPrograms};
pub use run::{Packet, Verdict};
pub use settings::{PacketSettings, SettingsWriter};
pub use start::{OpenedPackets, PacketConfig};
