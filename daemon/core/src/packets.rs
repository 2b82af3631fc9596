//! What the packet programs decide about the first packet of a connection: whether the client is admitted, and its slot.
//! [`crate::trace`] finds the frontend. All that they do with packets is in `bpf/`: the package `nodelb-programs` compiles it for tests.

pub mod admission;
pub mod choice;
pub mod outcomes;
pub mod sweep;
