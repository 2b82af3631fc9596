//! Keeps nodelb connected to an apiserver: selects an address, loads the credentials, and owns the connection.
//! Independent of the requests that are sent over the connection.
//!
//! ```text
//!  config ──> Settings ──┐                            ┌── watch: Option<Arc<Session>> ──> source
//!  credentials (files) ──┼──> supervisor (1) ─────────┤
//!  remembered addresses ─┘     │  pool (pure)         ├── watch: pool report ──> admin
//!              source ──Report──┘  link, probes        └── Change::Apiservers ──> owner
//! ```

pub mod address;
pub mod connection;
pub mod credentials;
pub mod endpoints;
pub mod one_shot;
pub mod session;
pub mod settings;
pub mod url;

pub use endpoints::supervisor::{Parts, start};
