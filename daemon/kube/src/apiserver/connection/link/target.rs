//! The destination of a link, and what both protocols need.

use std::error::Error;
use std::net::SocketAddr;

use http_body_util::Full;
use hyper::body::Bytes;
use rustls::pki_types::ServerName;

use crate::apiserver::address::Address;
use crate::apiserver::connection::connect::Connector;

/// The body of a request, empty for a GET.
pub(super) type Sent = Full<Bytes>;

#[derive(Clone)]
pub(super) struct Target {
    pub(super) connector: Connector,
    pub(super) at: SocketAddr,
    pub(super) name: ServerName<'static>,
    pub(super) address: Address,
}

/// An error with its causes, without the links to documentation that libraries append.
pub(super) fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    let text = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
    text.split(": https://").next().unwrap_or_default().into()
}
