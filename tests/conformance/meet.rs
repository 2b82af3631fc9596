//! One client and one address: dials until it is clear what happens there.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nix::errno::Errno;
use nodelb_core::addr::{L4Addr, Protocol};
use nodelb_core::trace::Errno as Refusal;
use nodelb_prober::{Failure, Transport, exchange};
use socket2::{Domain, Socket, Type};

use crate::dial::Outcome;

/// A list of backends of which some are not met in so many dials is not the one that is expected: with 16 equal ones
/// that happens by chance to one story in 25,000.
const TRIES: usize = 200;

/// A busy machine may be slow; a backend that does not answer is slower.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What a socket of each kind meets; they must agree.
pub(crate) fn meet(to: L4Addr, expected: &Outcome) -> Result<Outcome, String> {
    let transports = match to.protocol {
        Protocol::Tcp => [Transport::Tcp].as_slice(),
        Protocol::Udp => &[Transport::Udp, Transport::UdpUnconnected],
        Protocol::Sctp => return dial_sctp(to),
    };
    let mut met: Vec<(String, Outcome)> = Vec::new();
    for at in targets(to) {
        for transport in transports {
            let how = format!("{transport:?} to {at}");
            let outcome = dial(at, *transport, expected).map_err(|odd| format!("{how}: {odd}"))?;
            met.push((how, outcome));
        }
    }
    let (_, first) = &met[0];
    match met.iter().find(|(_, outcome)| outcome != first && !matches!(expected, Outcome::Keeps { .. })) {
        Some((how, outcome)) => Err(format!("{first}, but {how} {outcome}")),
        None => Ok(union(met.iter().map(|(_, outcome)| outcome), first)),
    }
}

/// An IPv4 address is dialled from an IPv6 socket, too.
fn targets(to: L4Addr) -> Vec<SocketAddr> {
    let plain = SocketAddr::new(to.addr.ip(), to.port);
    match to.addr.ip() {
        IpAddr::V4(v4) => vec![plain, SocketAddr::new(v4.to_ipv6_mapped().into(), to.port)],
        IpAddr::V6(_) => vec![plain],
    }
}

/// All that was reached by any of them, where backends were reached at all.
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

fn dial(to: SocketAddr, transport: Transport, expected: &Outcome) -> Result<Outcome, String> {
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
        // Some more, to meet those that are not expected.
        if reached.len() == wanted && tries >= 4 * wanted + 4 {
            break;
        }
    }
    Ok(Outcome::Reaches(reached))
}

fn refusal(to: SocketAddr, failure: &Failure, expected: &Outcome) -> Result<Outcome, String> {
    match failure {
        // Nobody listens on the loopback address of this namespace itself.
        Failure::Os(Errno::ECONNREFUSED)
            if to.ip().to_canonical().is_loopback() && *expected == Outcome::PassesThrough =>
        {
            Ok(Outcome::PassesThrough)
        }
        Failure::Os(Errno::ECONNREFUSED) => Ok(Outcome::Refused(Refusal::ConnectionRefused)),
        Failure::Os(Errno::EHOSTUNREACH) => Ok(Outcome::Refused(Refusal::HostUnreachable)),
        // There is no route to any address but those of backends.
        Failure::Os(Errno::ENETUNREACH) => Ok(Outcome::PassesThrough),
        other => Err(format!("fails with {other}")),
    }
}

/// Where this kernel has SCTP; elsewhere nobody can dial, so nothing can go wrong.
fn dial_sctp(to: L4Addr) -> Result<Outcome, String> {
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
