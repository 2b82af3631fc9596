//! Filters for rows and records, and the names of their values.

use std::sync::Arc;

use nodelb_core::model::addr::Addr;
use nodelb_core::model::service::{FrontendKind, ServiceName};
use nodelb_core::state::status::Status;
use strum::{IntoEnumIterator, VariantNames};

/// Restricts a report. An empty filter accepts everything. A condition on a property that a row does not have is
/// ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub service: Option<ServiceName>,
    pub namespace: Option<Arc<str>>,
    /// Accepts only rows with this address, at any port.
    pub address: Option<Addr>,
    /// Accepts only addresses of this kind, and services that have one.
    pub kind: Option<FrontendKind>,
    /// Accepts only rows with this status. Backends have no status.
    pub status: Option<Status>,
}

impl Filter {
    pub fn accepts(&self, name: &ServiceName) -> bool {
        self.service.as_ref().is_none_or(|service| service == name)
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == name.namespace)
    }

    pub fn for_service(name: &ServiceName) -> Self {
        Self { service: Some(name.clone()), ..Self::default() }
    }
}

/// The value with this name, ignoring case. The error lists the names.
pub fn named<T: IntoEnumIterator + VariantNames>(text: &str, what: &str) -> Result<T, String> {
    let mut named = T::iter().zip(T::VARIANTS);
    let found = named.find(|(_, name)| name.eq_ignore_ascii_case(text));
    let refused = || format!("`{text}` is not a {what} (expected {})", T::VARIANTS.join(", "));
    found.map(|(value, _)| value).ok_or_else(refused)
}
