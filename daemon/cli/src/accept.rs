//! `nodelb accept`: tells the daemon, over its socket, that what it holds back is meant.

use std::path::PathBuf;

use hyper::Method;

use super::asking::Asking;
use super::client::{self, At, DEFAULT_SOCKET};
use super::drain;
use crate::exit::Failure;

pub(super) fn run(asking: &Asking) -> Result<(), Failure> {
    // Only the socket accepts changes.
    let at = asking.admin.clone().unwrap_or_else(|| At::Unix(PathBuf::from(DEFAULT_SOCKET)));
    drain::print_done(&client::change(&at, &Method::POST, "/accept")?, asking.output)
}
