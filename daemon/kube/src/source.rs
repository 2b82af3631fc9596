//! The Kubernetes source. The watches ([`watch`]) read objects, the store ([`store`]) compares them with the known
//! ones, and the source's task ([`run`]) sends the resulting changes to the owner task. The store is pure.

mod cidrs;
mod followed;
pub mod live;
mod run;
pub mod selecting;
pub mod state_file;
mod status;
pub mod store;
pub mod watch;

pub use followed::Followed;
pub use run::{KubernetesSource, run};
pub use state_file::StateSettings;
