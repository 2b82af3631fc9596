//! Kubernetes as a source: objects, what they mean in nodelb's words, and the watches that bring them. The only place
//! where Kubernetes' words are spoken.
//!
//! Bytes are cut into objects ([`splitter`]), decoded and translated ([`decode`], [`objects`], [`translate`]), compared with
//! what is known ([`store`]) and told to the owner ([`run`]). All but the last is pure.

mod cidrs;
pub mod decode;
pub mod difference;
pub mod live;
pub mod objects;
mod page;
pub(crate) mod printable;
pub mod remember;
mod report;
pub mod request;
mod run;
mod save;
pub mod seen;
pub mod splitter;
pub mod store;
pub(crate) mod time;
pub mod translate;
mod trouble;
pub mod watch;

pub use run::{KubernetesSource, run};
pub use save::Memory;
