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
pub mod authorities;
pub mod client;
pub mod connect;
pub mod credentials;
pub mod credstore;
pub mod error;
mod exec;
mod files;
pub mod impersonation;
mod kubeconfig;
pub mod learn;
pub mod link;
pub mod login;
pub mod one_shot;
pub mod pool;
pub mod preflight;
pub mod proxy;
mod refusal;
pub mod resolve;
pub mod session;
pub mod state_file;
pub mod supervisor;
pub mod timeouts;
mod tls;
pub mod url;

pub use supervisor::{Parts, start};
