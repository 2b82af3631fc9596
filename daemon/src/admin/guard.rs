//! Access control. The API listens on loopback only, but a page of another site can direct a browser on this host there
//! (DNS rebinding). A request must therefore name a loopback host and must not come from a page of another site. No
//! page can reach a Unix socket, and its mode decides which users may open it; there, any host is accepted. Owns these
//! checks and the headers of every answer.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, Version};
use axum::middleware::Next;
use axum::response::Response;

use super::page;
use super::query::{Output, Problem};
use super::response::{Caller, problem_response};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Passes a request on or refuses it, and sets the headers that every answer has.
pub(super) async fn guard(request: Request, next: Next) -> Response {
    let is_local = request.extensions().get::<Caller>().is_some_and(|caller| caller.is_local);
    let mut response = match check(is_local, request.version(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem_response(&problem, Output::accepted(request.headers())),
    };
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn check(is_local: bool, version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    if !is_local {
        check_hosts(version, uri, headers)?;
    }
    check_page(uri, headers)
}

fn check_hosts(version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => check_host(host.to_str().unwrap_or_default())?,
        // A browser never sends a request without a host, so it cannot be used to bypass the check.
        (None, _) if version < Version::HTTP_11 => {}
        (None, _) => return Err(Problem::new(StatusCode::BAD_REQUEST, "the request has no Host header: send one")),
        (Some(_), Some(_)) => {
            return Err(Problem::new(StatusCode::BAD_REQUEST, "the request has several Host headers: send one"));
        }
    }
    // `GET http://name/ HTTP/1.1`: the name in the request line is checked like the header.
    uri.authority().map_or(Ok(()), |authority| check_host(authority.as_str()))
}

fn check_page(uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    if headers.contains_key(ORIGIN) && !is_own_page(headers) {
        return Err(forbidden("requests from web pages are refused (the request has an Origin header)"));
    }
    match headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes) {
        None | Some(b"none" | b"same-origin") => Ok(()),
        // A link to the web page, for example in a chat. The document contains no data, and no other page can read it.
        Some(_) if uri.path() == "/" && is_navigation(headers) => Ok(()),
        Some(_) => Err(forbidden("requests from web pages of another site are refused (see Sec-Fetch-Site)")),
    }
}

/// Whether nodelb's own web page sends the request: its scripts are modules, for which browsers send an Origin header.
fn is_own_page(headers: &HeaderMap) -> bool {
    let origins: Vec<&[u8]> = headers.get_all(ORIGIN).iter().map(HeaderValue::as_bytes).collect();
    let own = headers.get(HOST).map(|host| [b"http://", host.as_bytes()].concat());
    let is_same = headers.get(SEC_FETCH_SITE).is_some_and(|site| site.as_bytes() == b"same-origin");
    is_same && matches!((&origins[..], own), ([origin], Some(own)) if *origin == own)
}

/// Whether the browser opens a document in a tab.
fn is_navigation(headers: &HeaderMap) -> bool {
    let is = |name: &HeaderName, value: &[u8]| headers.get(name).is_some_and(|it| it.as_bytes() == value);
    is(&SEC_FETCH_MODE, b"navigate") && is(&SEC_FETCH_DEST, b"document") && page::is_browser(headers)
}

fn check_host(host: &str) -> Result<(), Problem> {
    if is_loopback(host) {
        return Ok(());
    }
    let message = format!("`{host}` is not a name of this host: use localhost, 127.0.0.1 or [::1]");
    Err(forbidden(&message))
}

fn forbidden(message: &str) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, message)
}

/// Whether `host` is `localhost` or a loopback address, with or without a port. Every loopback address is accepted,
/// because an address, unlike a name, cannot lead elsewhere.
fn is_loopback(host: &str) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(rest) = host.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else { return false };
        return address.parse::<Ipv6Addr>().is_ok_and(|v6| v6.to_canonical().is_loopback())
            && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
    }
    let name = match host.split_once(':') {
        Some((name, port)) if is_port(port) => name,
        Some(_) => return false,
        None => host,
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok_and(|v4| v4.is_loopback())
}

#[cfg(test)]
#[path = "tests/guard.rs"]
mod tests;
