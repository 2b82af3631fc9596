//! What readers are shown of a snapshot: rows, what happens to a connection and on what grounds, and where source, memory
//! and kernel differ.

pub mod differences;
pub mod rendezvous;
pub mod reports;
pub mod rows;
pub mod story;
pub mod trace;
