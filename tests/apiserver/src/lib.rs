//! A Kubernetes API server for tests: what nodelb and `kubectl` need of an apiserver's protocol over TLS, with injected
//! faults.
//!
//! ```text
//!  tests ──────────────────────────> Cluster (state: store, write, defaults, patch, fields; access, accounts; identity)
//!    │                                  ▲  ▲
//!    │         Replica (serve, wire) ───┘  └─── Replica: each with a thread, a certificate, faults
//!    └─ faults ──>  │
//!                answer: request, access, discovery, list, watch, reply
//! ```
//!
//! The server is deterministic: a fault occurs only where a rule requests it. It validates objects only where nodelb
//! depends on the result, and keeps its state in memory.

mod access;
mod accounts;
mod answer;
mod clock;
mod cluster;
mod defaults;
mod discovery;
mod faults;
mod fields;
mod identity;
mod kubeconfig;
mod list;
mod patch;
mod pools;
mod protobuf;
mod reply;
mod request;
mod resource;
mod selector;
mod serve;
mod status;
mod store;
mod table;
mod watch;
mod wire;
mod write;

pub use access::{Role, User};
pub use cluster::{Backup, Cluster, Credentials};
pub use faults::{Behaviour, EventFault, Fault, Faults, On, WatchList};
pub use identity::{Certificate, Identity};
pub use pools::Ranges;
pub use request::Verb;
pub use serve::{Replica, ServeOptions};
pub use status::Status;
pub use write::Patch;
