//! The messages about drains.

use std::io;
use std::path::Path;

use nodelb_core::model::drain::DrainCause;
use nodelb_core::model::service::ServiceName;
use nodelb_host::messages;
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
    warn!(
        message_id = %messages::STATE_UNWRITTEN,
        "{} cannot be written: {error}; after a restart, drains that were refused or have ended may be in effect",
        path.display()
    );
}

pub(super) fn log_written(path: &Path) {
    info!(message_id = %messages::STATE_WRITTEN, "{} has been written again", path.display());
}
