//! The node's uplinks.

use crate::model::uplink::Uplink;
use crate::table::Facts;

impl Facts {
    /// The last report about the uplinks; empty before the first one.
    pub fn uplinks(&self) -> &[Uplink] {
        &self.uplinks
    }
}
