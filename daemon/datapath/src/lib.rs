//! The kernel side of nodelb: loads the BPF programs, pins maps and links, writes and reads the maps. The only package
//! with `unsafe` code, and the only one that uses libbpf.
//!
//! ```text
//! open: probe -> pins -> load -> (copy) -> attach -> commit      cleanup: detach -> remove
//! work: write --stores, batches--> maps <--read-- reader         own: registers nodelb's sockets
//! ```
//!
//! All pins survive the end of the process at any time; [`CrashPoint`] lets tests end it after any operation.

mod attach;
mod chain;
mod cleanup;
mod clsact;
mod counters;
mod crash;
mod device_hooks;
mod error;
pub mod features;
mod filter_changes;
pub mod filters;
mod flows;
mod foreign_links;
mod grace;
mod hidden;
mod hook_point;

mod kept;
mod kernel;
mod layout;
mod load;
mod maps;
pub mod memory;
pub mod mounts;
mod order;
mod outside;
mod own_sockets;
mod packet_path;
pub mod packets;
mod pinned_links;
mod pins;
mod privilege;
mod probe;
mod read;
mod skeleton;
mod spec;
mod start;
mod sys;
mod tcx;
mod versions;
mod write;
mod xdp;
pub mod xtables;

pub use attach::{ForeignDirectory, LinkFault, LinkState, Links};
pub use cleanup::{CleanupReport, cleanup};
pub use counters::Counters;
pub use crash::CrashPoint;
pub use device_hooks::{Ahead, Attach, DeviceHooks, HookError, HookFault, HookMethod};
pub use error::OpenError;
pub use filter_changes::{ChangeFilters, FilterChange, InThisProcess};
pub use flows::FlowReader;
pub use foreign_links::foreign_pin_directories;
pub use hidden::{HiddenLink, LinkUser, detach_hidden, hidden_links};
pub use hook_point::{DeviceSide, Direction, HookedDevice, XdpFit};
pub use kept::ProgramCount;
pub use kernel::{KernelDatapath, Options, PIN_DIRECTORY, Repair, StartReport};
pub use order::{ProgramOrder, SocketProgram};
pub use own_sockets::OwnSockets;
pub use packet_path::{OpenedPackets, PacketFailure};
pub use privilege::{PrivilegeError, RemainingPrivileges, drop_privileges, drop_thread_privileges};
pub use read::KernelReader;
pub use start::Origin;
pub use sys::lease::is_open_for_writing;
pub use versions::{LAYOUT, PinnedContent, read_pinned};
pub use xdp::XdpState;
