//! What the packet programs decide about the first packet of a connection: whether the client is admitted, and its slot.
//! [`crate::trace`] finds the frontend. All that they do with packets is in the package `nodelb-model`, which tests compare with them.

pub mod admission;
pub mod choice;
pub mod sweep;
