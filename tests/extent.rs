//! How much of a test runs: `make test` takes a part of the steps and sequences, `make test-all` all of them.

use std::env;

/// Set by `make test-all`.
const ALL: &str = "NODELB_TEST_ALL";

pub(crate) fn is_all() -> bool {
    env::var_os(ALL).is_some()
}
