//! Whether this command is in the cgroup with the processes that use services.

use std::path::Path;

use nodelb_host::cgroup;

/// Returns the daemon's cgroup if this command is not in it; `None` if it is, or if that cannot be determined.
pub(super) fn outside(of_daemon: &str) -> Option<String> {
    let daemon = Path::new(of_daemon);
    (daemon.is_absolute() && cgroup::is_outside(daemon)).then(|| of_daemon.to_owned())
}
