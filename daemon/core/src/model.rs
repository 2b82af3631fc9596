//! The types for the reports of sources and of the node: addresses, services, slices, health checks, causes.

pub mod addr;
pub mod calendar;
pub mod cause;
pub mod drain;
pub mod forward;
pub mod health_check;
pub mod ipsec;
pub mod moment;
pub mod named;
pub mod node;
pub mod service;
pub mod source_range;
pub mod uplink;
