//! One connection to an apiserver: TCP, directly or through a proxy, TLS, HTTP, and the errors of requests.

pub mod client;
pub mod connect;
pub mod error;
pub mod link;
pub mod proxy;
mod tls;
