//! What the packet programs decide about the first packet of a connection: its frontend, whether the client is admitted,
//! and its slot. All that they do with packets is in the package `nodelb-model`, which tests compare with them.

pub mod admission;
pub mod choice;
pub mod frontend;
pub mod sweep;
