//! The programs of the packet path, which translate the packets of clients outside this node: loads them with their
//! maps, keeps the maps of connections over restarts, deletes connections that have ended, and runs the programs on given
//! packets. The programs are attached to devices by [`crate::DeviceHooks`].

mod bare;
mod bloom;
mod connections;
mod counts;
mod events;
mod foreign;
mod load;
pub(crate) mod maps;
mod run;
mod settings;
pub(crate) mod start;
mod sweep;

pub use bloom::PacketBloom;
pub use connections::{Connection, ConnectionCount, ConnectionReader, ConnectionState};
pub use counts::{DropCount, PacketCounter, PacketCounts, PacketVerdict, REASONS};
pub use events::{Captured, EventFilter, PacketEvent, PacketEvents, unix_micros};
pub use foreign::{ForeignConnections, ForeignPorts};
pub use load::{LinkLayer, PacketHook, PacketMaps, PacketOptions, PacketPrograms};
pub use run::{Packet, Verdict};
pub use settings::{PacketSettings, SettingsWriter, UnknownPackets};
pub use start::{OpenedPackets, PacketFailure};
pub use sweep::{Sweep, SweepReason, SweepTimeouts, Swept};
