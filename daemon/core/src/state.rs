//! What the maps should hold and what they do hold; how the one becomes the other, under which numbers, and for whom.

pub mod dump;
pub mod entries;
pub mod ids;
pub mod kernel_check;
pub mod map_ops;
pub mod moves;
pub mod owner;
pub mod remembered;
pub mod runs;
pub mod status;
