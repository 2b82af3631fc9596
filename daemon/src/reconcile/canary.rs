//! Tests by real connects whether the hooks act on this node's processes. Owns the meaning of each outcome; the
//! reconcile loop decides when to test, and what follows.
//!
//! A canary frontend has no backend, so the hook must refuse a connect() to it immediately. The connect() uses a UDP
//! socket, so no packet is sent in any case. Programs of another nodelb refuse it, too. Therefore this daemon's program
//! marks its own record of the socket: programs of another nodelb have neither the record nor the list of nodelb's own
//! sockets.

use std::fmt::Display;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use nodelb_core::model::addr::{Family, L4Addr};
use nodelb_core::state::entries::CANARIES;
use nodelb_host::cgroup;

/// The outcome of a connect() to a canary frontend.
type Answer = Result<(), Errno>;

/// The hooks do not act as they should, or the test failed. The text is for `/readyz` and the journal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CanaryError {
    /// The first half failed: an ordinary socket was not refused.
    #[error(
        "the BPF hooks do not apply to processes of cgroup {cgroup}: a connect to the {family} canary {frontend} \
         should be refused, but: {answer}. Connections to service addresses are not translated there. Check with \
         `bpftool cgroup tree` that the programs of nodelb are on the root of the cgroup v2 hierarchy, then restart \
         nodelb"
    )]
    NotInEffect {
        family: Family,
        frontend: L4Addr,
        /// The kernel's answer instead of a refusal.
        answer: String,
        /// The cgroup of this process, which the result applies to.
        cgroup: String,
    },
    /// The program that answered is not this daemon's: a socket that is registered as nodelb's own was refused, too, or
    /// this daemon's program did not see the socket.
    #[error(
        "programs of another nodelb translate {family} connections {}: they use their own maps, which may be outdated, \
         and they also translate the connections of this nodelb to its apiserver",
        if *is_shared { "together with those of this one" } else { "in place of those of this one" }
    )]
    AnotherAnswers {
        family: Family,
        /// Whether this daemon's program is in effect as well.
        is_shared: bool,
    },
    /// The test could not be made.
    #[error("the {family} canary test could not run: {reason}; it is unknown whether the hooks work")]
    NotTried {
        family: Family,
        /// The operation that failed.
        reason: String,
    },
}

/// The kind of socket that is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A socket that any process of this node might have.
    Ordinary,
    /// A socket that is registered as nodelb's own.
    Own,
}

/// Tests both halves in both families: an ordinary socket must be refused immediately, one of nodelb's own must not be
/// refused, and this daemon's program must have made both decisions. `prepare` registers a socket with that program,
/// and `was_observed` returns whether the program has seen it. Returns a note for each family that could not be tested,
/// such as `IPv6 is not tested: this host has no IPv6 sockets`.
///
/// # Errors
/// The first result that is not as it should be.
pub fn check<E: Display>(
    prepare: impl Fn(Probe, BorrowedFd<'_>) -> Result<(), E>,
    was_observed: impl Fn(BorrowedFd<'_>) -> Result<bool, E>,
) -> Result<Vec<String>, CanaryError> {
    let mut notes = Vec::new();
    for frontend in CANARIES {
        let family = frontend.addr.family();
        let try_connect = |probe| {
            let prepare = |socket: BorrowedFd<'_>| prepare(probe, socket).map_err(|error| unprepared(probe, &error));
            let was_observed = |socket: BorrowedFd<'_>| {
                was_observed(socket)
                    .map_err(|error| format!("cannot read the result of a program for a socket: {error}"))
            };
            try_connect(frontend, prepare, was_observed).map_err(|reason| CanaryError::NotTried { family, reason })
        };
        notes.extend(judge(frontend, try_connect(Probe::Ordinary)?, try_connect(Probe::Own)?)?);
    }
    Ok(notes)
}

fn unprepared(probe: Probe, error: &impl Display) -> String {
    match probe {
        Probe::Ordinary => format!("cannot announce a socket to the programs: {error}"),
        Probe::Own => format!("cannot register a socket of nodelb: {error}"),
    }
}

/// An answer, and whether this daemon's program took part in it; `None` if the host has no sockets of the family.
type Seen = Option<(Answer, bool)>;

/// Returns what the two answers mean together: a note if there are none.
fn judge(frontend: L4Addr, ordinary: Seen, own: Seen) -> Result<Option<String>, CanaryError> {
    const REFUSED: Answer = Err(Errno::ECONNREFUSED);
    let family = frontend.addr.family();
    let (Some(ordinary), Some(own)) = (ordinary, own) else {
        return Ok(Some(format!("{family} is not tested: this host has no {family} sockets")));
    };
    match (ordinary, own) {
        // Connected, or unreachable because the node has no route: in both cases the hook left nodelb's own socket
        // alone.
        ((REFUSED, true), (answer, true)) if answer != REFUSED => Ok(None),
        ((REFUSED, ordinary), (_, own)) => Err(CanaryError::AnotherAnswers { family, is_shared: ordinary && own }),
        ((answer, _), _) => {
            let answer = answer.map_or_else(Errno::desc, |()| "connected").into();
            Err(CanaryError::NotInEffect { family, frontend, answer, cgroup: own_cgroup() })
        }
    }
}

/// Connects a new UDP socket after `prepare` has registered it, and then calls `was_observed` for it.
fn try_connect(
    frontend: L4Addr,
    prepare: impl FnOnce(BorrowedFd<'_>) -> Result<(), String>,
    was_observed: impl FnOnce(BorrowedFd<'_>) -> Result<bool, String>,
) -> Result<Seen, String> {
    let family = match frontend.addr.family() {
        Family::Ipv4 => AddressFamily::Inet,
        Family::Ipv6 => AddressFamily::Inet6,
    };
    let socket: OwnedFd = match socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None) {
        Ok(socket) => socket,
        Err(Errno::EAFNOSUPPORT) => return Ok(None),
        Err(errno) => return Err(format!("no socket: {}", errno.desc())),
    };
    prepare(socket.as_fd())?;
    let address = SockaddrStorage::from(SocketAddr::new(frontend.addr.ip(), frontend.port));
    let answer = connect(socket.as_raw_fd(), &address);
    Ok(Some((answer, was_observed(socket.as_fd())?)))
}

fn own_cgroup() -> String {
    cgroup::own().map_or_else(|| "(unknown)".to_owned(), |own| own.display().to_string())
}

#[cfg(test)]
#[path = "tests/canary.rs"]
mod tests;
