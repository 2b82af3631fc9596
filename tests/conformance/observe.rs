//! Connects one client to one address until the outcome is certain.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nix::errno::Errno;
use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::packets::admission::Refusal;
use nodelb_prober::{Failure, Transport, exchange};
use socket2::{Domain, Socket, Type};

use crate::environment::Outcome;

/// Maximum number of connections until every expected backend must have answered: with 16 equal
/// backends, one scenario in 25,000 fails by chance.
const TRIES: usize = 200;

/// A busy machine may be slow; a backend that does not answer is slower.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The outcome for each kind of socket; all of them must agree.
pub(crate) fn observe(to: L4Addr, expected: &Outcome) -> Result<Outcome, String> {
    let transports = match to.protocol {
        Protocol::Tcp => [Transport::Tcp].as_slice(),
        Protocol::Udp => &[Transport::Udp, Transport::UdpUnconnected],
        Protocol::Sctp => return connect_sctp(to),
    };
    let mut met: Vec<(String, Outcome)> = Vec::new();
    for at in targets(to) {
        for transport in transports {
            let how = format!("{transport:?} to {at}");
            let outcome = connect(at, *transport, expected).map_err(|odd| format!("{how}: {odd}"))?;
            met.push((how, outcome));
        }
    }
    let (_, first) = &met[0];
    match met.iter().find(|(_, outcome)| outcome != first && !matches!(expected, Outcome::Keeps { .. })) {
        Some((how, outcome)) => Err(format!("{first}, but {how} {outcome}")),
        None => Ok(union(met.iter().map(|(_, outcome)| outcome), first)),
    }
}

/// An IPv4 address is also tested from an IPv6 socket.
fn targets(to: L4Addr) -> Vec<SocketAddr> {
    let plain = SocketAddr::new(to.addr.ip(), to.port);
    match to.addr.ip() {
        IpAddr::V4(v4) => vec![plain, SocketAddr::new(v4.to_ipv6_mapped().into(), to.port)],
        IpAddr::V6(_) => vec![plain],
    }
}

/// The union of the backends that were reached, if any were.
fn union<'a>(met: impl Iterator<Item = &'a Outcome>, first: &Outcome) -> Outcome {
    let mut all = BTreeSet::new();
    for outcome in met {
        match outcome {
            Outcome::Reaches(backends) => all.extend(backends.iter().copied()),
            other => return other.clone(),
        }
    }
    if all.is_empty() { first.clone() } else { Outcome::Reaches(all) }
}

fn connect(to: SocketAddr, transport: Transport, expected: &Outcome) -> Result<Outcome, String> {
    let wanted = match expected {
        Outcome::Reaches(backends) => backends.len(),
        _ => 1,
    };
    let mut reached = BTreeSet::new();
    for tries in 1..=TRIES {
        match exchange(to, transport, TIMEOUT) {
            Ok(name) => reached.insert(name.parse::<L4Addr>().map_err(|error| error.to_string())?),
            Err(failure) if reached.is_empty() => return refusal(to, &failure, expected),
            Err(failure) => return Err(format!("reaches {reached:?}, then fails with {failure}")),
        };
        // A few more, to detect unexpected backends.
        if reached.len() == wanted && tries >= 4 * wanted + 4 {
            break;
        }
    }
    Ok(Outcome::Reaches(reached))
}

fn refusal(to: SocketAddr, failure: &Failure, expected: &Outcome) -> Result<Outcome, String> {
    match failure {
        // Nothing listens on the loopback addresses of this namespace.
        Failure::Os(Errno::ECONNREFUSED)
            if to.ip().to_canonical().is_loopback() && *expected == Outcome::PassesThrough =>
        {
            Ok(Outcome::PassesThrough)
        }
        Failure::Os(Errno::ECONNREFUSED) => Ok(Outcome::Refused(Refusal::NoBackend)),
        Failure::Os(Errno::EHOSTUNREACH) => Ok(Outcome::Refused(Refusal::NoLocalBackend)),
        // Only backends have a route.
        Failure::Os(Errno::ENETUNREACH) => Ok(Outcome::PassesThrough),
        other => Err(format!("fails with {other}")),
    }
}

/// Only where this kernel has SCTP; elsewhere no client can connect.
fn connect_sctp(to: L4Addr) -> Result<Outcome, String> {
    let at = SocketAddr::new(to.addr.ip(), to.port);
    let socket = match Socket::new(Domain::for_address(at), Type::STREAM, Some(i32::from(to.protocol.number()).into()))
    {
        Ok(socket) => socket,
        Err(error) if error.raw_os_error() == Some(Errno::EPROTONOSUPPORT as i32) => return Ok(Outcome::PassesThrough),
        Err(error) => return Err(error.to_string()),
    };
    match socket.connect_timeout(&at.into(), TIMEOUT) {
        Err(error) if error.raw_os_error() == Some(Errno::ENETUNREACH as i32) => Ok(Outcome::PassesThrough),
        other => Err(format!("SCTP ends with {other:?}")),
    }
}
