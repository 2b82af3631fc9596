//! What a reader wants to see of rows and records.

use crate::model::addr::Addr;
use crate::model::service::{FrontendKind, ServiceName};
use crate::state::status::Status;

/// Narrows a report. An empty filter lets everything through; what a row does not have narrows it not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this service.
    pub service: Option<ServiceName>,
    /// Only rows whose address is this one, whatever the port.
    pub address: Option<Addr>,
    /// Only addresses of this kind, and services that have one.
    pub kind: Option<FrontendKind>,
    /// Only rows that stand so; backends do not stand in any way.
    pub status: Option<Status>,
}

impl Filter {
    /// Everything of one service.
    pub fn of_service(name: &ServiceName) -> Self {
        Self { service: Some(name.clone()), ..Self::default() }
    }
}
