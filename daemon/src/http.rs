//! The HTTP server of nodelb, for the admin API and for load balancers.

use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;

/// The maximum size of a request header in bytes, and the maximum number of lines in it.
const HEADER_BYTES: usize = 8 * 1024;
const HEADER_LINES: usize = 64;

/// The HTTP server for all clients: the size of a header and the time to send it are limited.
pub(crate) fn server(header_time: Duration) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(header_time)
        .max_header_size(HEADER_BYTES)
        .max_headers(HEADER_LINES);
    http
}
