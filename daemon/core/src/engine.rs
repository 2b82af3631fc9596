//! The owner's state machine; see the drawing in the crate's documentation. (Being written.)

use crate::datapath::Moment;
use crate::report::{BackendReport, Filter, FrontendReport, ServiceReport};
use crate::state::{Desired, Realised, ServiceId};

/// An immutable picture of everything the owner knows, cheap to take and to keep.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When it was taken.
    pub at: Moment,
    /// What the kernel should hold.
    pub desired: Desired,
    /// What the kernel holds, as far as successful operations tell.
    pub realised: Realised,
}

impl Snapshot {
    /// The rows of `/services`, by name.
    pub fn services(&self, _filter: &Filter) -> Vec<ServiceReport> {
        Vec::new()
    }

    /// The rows of `/frontends`, by address, then service.
    pub fn frontends(&self, _filter: &Filter) -> Vec<FrontendReport> {
        Vec::new()
    }

    /// The rows of `/backends`, by service, port and address.
    pub fn backends(&self, _filter: &Filter) -> Vec<BackendReport> {
        Vec::new()
    }

    /// What a service id stands for, as `shop/web:http/TCP/IPv4`; `None` for an id nobody owns.
    pub fn service_of(&self, _id: ServiceId) -> Option<String> {
        None
    }
}
