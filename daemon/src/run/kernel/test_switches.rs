//! Environment variables that only tests set, and only debug builds read.

use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

use nodelb_cli::exit::{Code, Failure};
use nodelb_datapath::{HookMethod, LAYOUT};

use crate::sockets::conntrack;

/// The environment variable with the number of operations on maps, pins and links before the daemon kills itself: tests
/// use it for a crash at every step.
const CRASH_AFTER: &str = "NODELB_TEST_CRASH_AFTER";

/// The environment variable with another version number for the daemon's layout: tests use it for an upgrade to the
/// next version.
const LAYOUT_IS: &str = "NODELB_TEST_LAYOUT";

/// The environment variable with the way to attach programs to devices, as `nodelb devices` shows it: tests use it for
/// kernels without tcx links.
const HOOKS_ARE: &str = "NODELB_TEST_HOOKS";

/// The environment variable with the milliseconds that `nodelb cleanup` waits for answers under way, which tests shorten.
const UNDER_WAY_IS: &str = "NODELB_TEST_UNDER_WAY";

/// Environment variable of the tests: connection tracking counts as a module.
const CONNTRACK_IS: &str = "NODELB_TEST_CONNTRACK";

/// The number of operations before the daemon kills itself, if a test sets it.
pub(crate) fn crash_after() -> Result<Option<u64>, Failure> {
    number_of(CRASH_AFTER)
}

pub(crate) fn under_way() -> Result<Option<Duration>, Failure> {
    Ok(number_of(UNDER_WAY_IS)?.map(Duration::from_millis))
}

pub(super) fn layout() -> Result<u32, Failure> {
    match number_of(LAYOUT_IS)? {
        Some(version) if version < LAYOUT => {
            Err(Failure::message(Code::Config, format!("{LAYOUT_IS}={version}: it is at least {LAYOUT}")))
        }
        version => Ok(version.unwrap_or(LAYOUT)),
    }
}

/// The way to attach programs to devices, if a test sets it.
pub(super) fn hook_method() -> Result<Option<HookMethod>, Failure> {
    let Some(value) = of_test(HOOKS_ARE) else { return Ok(None) };
    let known = [HookMethod::Tcx, HookMethod::Clsact].into_iter().find(|method| *value == *method.to_string());
    let refused = || format!("{HOOKS_ARE}={}: not a way to attach programs", value.display());
    known.map(Some).ok_or_else(|| Failure::message(Code::Config, refused()))
}

/// Whether the packet programs can query connection tracking, unless a test sets it.
pub(super) fn asks_conntrack() -> bool {
    conntrack::is_built_in() && of_test(CONNTRACK_IS).is_none()
}

/// An environment variable that only tests set. Release builds do not read it, and do not have its name: with a layout
/// that it does not have, a daemon would leave maps that no version reads.
fn of_test(variable: &str) -> Option<OsString> {
    if cfg!(debug_assertions) { std::env::var_os(variable) } else { None }
}

/// The number in an environment variable, if a test sets it.
fn number_of<T: FromStr>(variable: &str) -> Result<Option<T>, Failure> {
    let Some(value) = of_test(variable) else { return Ok(None) };
    let number = value.to_str().and_then(|text| text.parse().ok());
    let refused = || Failure::message(Code::Config, format!("{variable}={}: not a number", value.display()));
    number.map(Some).ok_or_else(refused)
}
