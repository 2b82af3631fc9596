//! The messages about drains.

use std::path::Path;

use nodelb_core::model::drain::DrainCause;
use nodelb_core::model::service::ServiceName;
use nodelb_core::text;
use nodelb_host::messages;
use tracing::{info, warn};

/// The maximum length in characters of a problem that names what a file contains.
const MAX_PROBLEM: usize = 256;

/// Logs that a drain begins or ends. If others of the backend remain, the cause names them.
pub(super) fn log(service: &ServiceName, cause: &DrainCause, others_remain: bool) {
    let (text, effect) = match cause {
        DrainCause::Begun(text) => (text, "; new connections avoid the backend, existing ones continue"),
        DrainCause::Ended(text) if others_remain => (text, ""),
        DrainCause::Ended(text) => (text, "; the backend receives new connections again if it is usable"),
    };
    info!(message_id = %messages::BACKEND_DRAINED, %service, "{service}: {text}{effect}");
}

pub(super) fn warn_unreadable(path: &Path, service: &ServiceName, problem: &str) {
    let problem = text::limited(problem, MAX_PROBLEM);
    warn!(
        message_id = %messages::STATE_UNREADABLE,
        %service, "a drain of {service} in {} cannot be read: {problem}; it is not in effect", path.display()
    );
}
