//! `nodelb accept`: tells the daemon, over its socket, that what it holds back is meant.

use hyper::Method;

use super::asking::Asking;
use super::drain;
use crate::exit::Failure;

pub(super) fn run(asking: &Asking) -> Result<(), Failure> {
    drain::change(asking, &Method::POST, "/accept")
}
