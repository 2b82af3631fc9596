//! The programs of the packet path, which translate the packets of clients outside this node: loads them with their
//! maps, keeps the maps of connections over restarts, deletes connections that have ended, and runs the programs on given
//! packets. The programs are attached to devices by [`crate::DeviceHooks`].

mod bare;
pub(crate) mod bloom;
mod checks;
mod connections;
mod counts;
mod events;
mod foreign;
mod handles;
mod ipsec;
mod load;
pub(crate) mod maps;
pub(crate) mod outside_addrs;
mod run;
mod settings;
mod sweep;
mod xdp;

pub use bare::LinkLayer;
pub use bloom::PacketBloom;
pub use checks::{CheckWays, DIRECT_TTL};
pub use connections::{Connection, ConnectionCount, ConnectionEnds, ConnectionReader, ConnectionState};
pub use counts::{DropCount, PacketCounter, PacketCounts, PacketVerdict, REASONS, seconds};
pub use events::{Captured, EventFilter, EventReader, PacketEvent, PacketEvents, unix_micros};
pub use foreign::{ForeignConnections, ForeignPorts};
pub use handles::PacketMaps;
pub use ipsec::{MOST_POLICIES, PolicyWriter};
pub use load::{PacketHook, PacketOptions, PacketPrograms, XdpMode};
pub use run::{Packet, Verdict};
pub use settings::{Draining, PacketSettings, SettingsWriter, UnknownPackets};
pub use sweep::{Interval, Sweep, SweepReason, SweepTimeouts, Swept};
pub use xdp::{XdpDevice, XdpProgram};
