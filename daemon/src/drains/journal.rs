//! The messages about drains.

use std::io;
use std::path::Path;

use nodelb_core::model::drain::DrainCause;
use nodelb_core::model::service::ServiceName;
use nodelb_host::{messages, unwritten};
use tracing::{info, warn};

/// Logs that a drain begins or ends.
pub(super) fn log(service: &ServiceName, cause: &DrainCause) {
    match cause {
        DrainCause::Begun(text) => info!(
            message_id = %messages::BACKEND_DRAINED,
            %service, "{service}: {text}; new connections avoid the backend, existing ones continue"
        ),
        DrainCause::Ended(text) => info!(
            message_id = %messages::BACKEND_DRAINED,
            %service, "{service}: {text}; the backend receives new connections again if it is usable"
        ),
    }
}

pub(super) fn warn_unwritten(path: &Path, error: &io::Error) {
    let text = unwritten::failed(path, error, "after a restart, drains that have ended would be in effect again");
    warn!(message_id = %messages::STATE_UNWRITTEN, "{text}");
}
