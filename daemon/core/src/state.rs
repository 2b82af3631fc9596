//! The desired and the realised content of the maps, the operations that lead from one to the other, the ids, and the
//! owners.

pub mod entries;
pub mod ids;
pub mod kernel_check;
pub mod map_ops;
pub mod owner;
pub mod remembered;
pub mod ring;
pub mod runs;
pub mod share;
pub mod slot;
pub mod stale_generation;
pub mod status;
pub mod used;
