//! Tests with a part that another process runs in the same sandbox, for example because that process dies or gives up
//! its capabilities.

use crate::sandbox::{self, Sandbox};

/// The environment variable with the name of the part.
pub(crate) const PART: &str = "NODELB_TEST_PART";

/// Runs a test in a sandbox, or a part of it in the existing sandbox.
pub(crate) fn in_sandbox(test: &str, body: impl FnOnce(&Sandbox)) {
    match part() {
        None => sandbox::run(test, body),
        Some(_) => {
            let cgroup = std::env::var_os("NODELB_SANDBOX_CGROUP").expect("a part runs inside a sandbox");
            body(&Sandbox { cgroup: cgroup.into(), bpffs: "/sys/fs/bpf".into() });
        }
    }
}

/// The part of a test that this process runs; `None` in the main process.
pub(crate) fn part() -> Option<String> {
    std::env::var(PART).ok()
}
