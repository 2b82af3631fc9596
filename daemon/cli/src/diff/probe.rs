//! Real connects, made by this process in the same way as by any other process on the node. They show whether the
//! kernel does what the daemon wants. The kernel's list of sockets shows the real peer of a connection, because
//! `getpeername` returns the service's address.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nodelb_core::difference::{Between, Difference};
use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_report::problems::Reason;
use nodelb_report::rows::{FrontendRow, Frontends, Maps};
use nodelb_report::status_report::StatusReport;
use socket2::{Domain, SockAddr, Socket, Type};

use super::super::answer::decode;
use super::super::ask::DaemonAddresses;
use crate::exit::{Code, Failure};

const MAX_PROBES: usize = 64;

/// Time limit for a backend to accept a connection.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the peer of the socket with this local address and protocol from the kernel's list of sockets, also while
/// the socket is still connecting; `None` if the list does not contain the socket. The error states why the list cannot
/// be read.
pub type ReadPeer = fn(BorrowedFd<'_>, SocketAddr, Protocol) -> io::Result<Option<L4Addr>>;

#[derive(Debug, PartialEq, Eq)]
enum Met {
    /// The hook refused the connect immediately.
    Refusal(String),
    /// The connect was not translated, and there is no route.
    NoListener(String),
    /// This address accepted the connection, or it is connected over UDP, which involves no peer. `None` if the
    /// connection ended before the list of sockets was read.
    Peer(Option<L4Addr>),
    /// This address did not accept the connection, for this reason.
    Closed(Option<L4Addr>, String),
}

/// Probes the frontends that pass the filters, and returns those that do not behave as the daemon wants.
pub(super) fn differences(addresses: &DaemonAddresses, read_peer: ReadPeer) -> Result<Vec<Difference>, Failure> {
    let parameters = addresses.parameters()?;
    let answer: Frontends = decode(&addresses.asking.get("/frontends", &parameters)?)?;
    let mut tried = answer.frontends;
    tried.retain(|row| row.status.is_in_maps());
    tried.truncate(MAX_PROBES);
    let node: Vec<Addr> = if tried.iter().any(|row| row.address.addr.is_unspecified()) {
        let parameters: Vec<_> = parameters.into_iter().filter(|(name, _)| *name == "service").collect();
        let maps: Maps = decode(&addresses.asking.get("/maps", &parameters)?)?;
        maps.node_addresses.iter().filter_map(|row| row.address.parse().ok()).collect()
    } else {
        Vec::new()
    };
    let others = if tried.is_empty() { Vec::new() } else { others(addresses)? };
    let mut rows = Vec::new();
    for row in tried {
        let Some(to) = target_of(row.address, &node) else { continue };
        match meet(to, read_peer) {
            Ok(met) => rows.extend(judge(to, &row, &met, &others)),
            Err(error) => return Err(Failure::message(Code::System, format!("connecting to {to}: {error}"))),
        }
    }
    Ok(rows)
}

/// What the daemon says about programs of other software at its hooks: whether they run before or after its own.
fn others(addresses: &DaemonAddresses) -> Result<Vec<String>, Failure> {
    let report: StatusReport = decode(&addresses.asking.get("/status", &[])?)?;
    let problems = report.problems.into_iter().filter(|problem| problem.reason == Reason::HooksShared);
    Ok(problems.map(|problem| problem.cause).collect())
}

/// Returns the address to connect to. For a NodePort this is an address of the node; `None` if the node has none of the
/// family.
fn target_of(frontend: L4Addr, node: &[Addr]) -> Option<L4Addr> {
    if !frontend.addr.is_unspecified() {
        return Some(frontend);
    }
    let own = node.iter().find(|own| own.family() == frontend.addr.family())?;
    Some(L4Addr { addr: *own, ..frontend })
}

/// Makes one connect. Any answer of the network is an outcome, not an error.
///
/// # Errors
/// When this host has no sockets of this kind, or when its list of sockets cannot be read.
fn meet(to: L4Addr, read_peer: ReadPeer) -> io::Result<Met> {
    let target = SocketAddr::new(to.addr.ip(), to.port);
    let kind = if to.protocol == Protocol::Udp { Type::DGRAM } else { Type::STREAM };
    let socket = Socket::new(Domain::for_address(target), kind, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::from(target)) {
        Ok(()) => Ok(Met::Peer(peer(&socket, to, read_peer)?)),
        Err(error) if errno(&error) == Errno::EINPROGRESS => {
            let peer = peer(&socket, to, read_peer)?;
            let mut waiting = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
            let timeout = PollTimeout::try_from(TIMEOUT).unwrap_or(PollTimeout::MAX);
            if poll(&mut waiting, timeout)? == 0 {
                return Ok(Met::Closed(peer, format!("no response within {} s", TIMEOUT.as_secs())));
            }
            Ok(match socket.take_error()? {
                None => Met::Peer(peer),
                Some(error) => Met::Closed(peer, error.to_string()),
            })
        }
        // Only the hook and the routing table fail a connect immediately and without a packet.
        Err(error) => Ok(match errno(&error) {
            Errno::ECONNREFUSED | Errno::EHOSTUNREACH => Met::Refusal(error.to_string()),
            _ => Met::NoListener(error.to_string()),
        }),
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or_default())
}

/// Returns the address that the socket is connected to, or is connecting to.
fn peer(socket: &Socket, to: L4Addr, read_peer: ReadPeer) -> io::Result<Option<L4Addr>> {
    let source = socket.local_addr()?.as_socket();
    source.map_or(Ok(None), |source| read_peer(socket.as_fd(), source, to.protocol))
}

/// Returns the difference, if the outcome is not what the daemon wants.
fn judge(to: L4Addr, row: &FrontendRow, met: &Met, others: &[String]) -> Option<Difference> {
    let is_backend = |peer: &L4Addr| row.backends.contains(peer);
    // Only clients in source ranges are admitted, which this host may not be.
    let has_ranges = row.flags.iter().any(|flag| flag.starts_with("SourceRanges="));
    let elsewhere = match others {
        [] => "the maps changed a moment ago, or a program at a cgroup below that of nodelb translates the address; \
               bpftool cgroup tree shows it"
            .to_owned(),
        others => {
            format!("the maps changed a moment ago, or another program translates the address: {}", others.join("; "))
        }
    };
    let elsewhere = elsewhere.as_str();
    let untranslated =
        "the hooks do not apply to this process: it is in another cgroup, or the hooks were detached; see /readyz";
    let (kernel, cause) = match met {
        Met::Refusal(_) if row.backends.is_empty() || has_ranges => return None,
        Met::Peer(Some(peer)) if is_backend(peer) => return None,
        // The connect was translated. Otherwise there would be no route, or no peer that could have closed the
        // connection.
        Met::Peer(None) if !row.backends.is_empty() => return None,
        Met::Closed(Some(peer), why) if is_backend(peer) => {
            (format!("a connect was sent to {peer}: {why}"), "nothing listens there, or a filter is in the way")
        }
        Met::Peer(Some(peer)) | Met::Closed(Some(peer), _) if *peer == to => {
            ("a connect was not translated".to_owned(), untranslated)
        }
        Met::Closed(None, why) => (format!("a connect failed: {why}"), "no backend listens, or a filter is in the way"),
        Met::Peer(peer) | Met::Closed(peer, _) => {
            let peer = peer.map_or_else(|| "somewhere".to_owned(), |peer| peer.to_string());
            (format!("a connect was sent to {peer}"), elsewhere)
        }
        Met::Refusal(why) => (format!("a connect was refused at once: {why}"), elsewhere),
        Met::NoListener(why) => (format!("a connect was not translated: {why}"), untranslated),
    };
    let backends: Vec<String> = row.backends.iter().map(L4Addr::to_string).collect();
    let memory = if backends.is_empty() { "refused".to_owned() } else { format!("[{}]", backends.join(", ")) };
    Some(Difference {
        between: Between::KernelConnect,
        what: row.address.to_string(),
        service: row.service.as_ref().and_then(|service| service.parse().ok()),
        source: None,
        memory: Some(memory),
        kernel: Some(kernel),
        cause: cause.into(),
        action: "connections follow the maps; nodelb tests its hooks every 10 s".into(),
    })
}

#[cfg(test)]
#[path = "tests/probe.rs"]
mod tests;
