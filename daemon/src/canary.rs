//! Proof of life: whether the hooks act on this node's processes, found by trying. Owns what each outcome
//! means; when to try, and what follows, is the reconcile loop's business.
//!
//! A canary frontend has no backend, so the hook must refuse a connect() to it at once. The connect() is that of a UDP
//! socket, which sends no packet whatever happens.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use nodelb_core::addr::{Family, L4Addr};
use nodelb_core::state::CANARIES;

/// What a connect() to a canary frontend came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Connected,
    Failed(Errno),
    /// The host has no sockets of this family.
    NoFamily,
}

impl Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected => f.write_str("connected"),
            Self::Failed(errno) => f.write_str(errno.desc()),
            Self::NoFamily => f.write_str("no sockets of this family"),
        }
    }
}

/// The hooks act on this process as they should. Holds a note for each family that could not be tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alive {
    /// Such as `IPv6 is not tried: this host has no IPv6 sockets`.
    pub notes: Vec<String>,
}

/// The hooks do not act as they should, or that could not be found out. The text is for `/readyz` and the journal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CanaryError {
    /// The first half failed: an ordinary socket was not refused.
    #[error(
        "the BPF hooks are not in effect for processes of cgroup {cgroup}: a connect to the {family} canary {frontend} \
         should be refused, but: {answer}. Connections to service addresses are not translated there. Look with \
         `bpftool cgroup tree` whether nodelb's programs are on the root of the cgroup v2 hierarchy, then restart nodelb"
    )]
    NotInEffect {
        /// Which family was tried.
        family: Family,
        /// What was dialled.
        frontend: L4Addr,
        /// What the kernel said instead.
        answer: String,
        /// The cgroup of this process, where it was tried.
        cgroup: String,
    },
    /// The second half failed: a socket registered as nodelb's own was refused too.
    #[error(
        "nodelb's own {family} connections are translated although they are registered as its own: nodelb may lose its \
         apiserver when a service changes. The program on the hook is not the one that reads this registration: look \
         with `bpftool cgroup tree` for programs of another nodelb, then restart nodelb"
    )]
    OwnTranslated {
        /// Which family was tried.
        family: Family,
    },
    /// Nothing was found out.
    #[error("the {family} canary could not be tried: {reason}; whether the hooks are in effect is not known")]
    NotTried {
        /// Which family was to be tried.
        family: Family,
        /// What failed.
        reason: String,
    },
}

/// Tries both halves in both families: an ordinary socket must be refused at once, one that `register` marks as
/// nodelb's own must not be.
///
/// # Errors
/// The first thing that is not as it should be.
pub fn check<E: Display>(register: impl Fn(BorrowedFd<'_>) -> Result<(), E>) -> Result<Alive, CanaryError> {
    let mut alive = Alive::default();
    for frontend in CANARIES {
        let family = frontend.addr.family();
        let not_tried = |reason: String| CanaryError::NotTried { family, reason };
        let ordinary = dial(frontend, |_| Ok(())).map_err(not_tried)?;
        let own = dial(frontend, |fd| {
            register(fd).map_err(|error| format!("a socket could not be registered as nodelb's own: {error}"))
        })
        .map_err(not_tried)?;
        alive.notes.extend(judge(frontend, ordinary, own)?);
    }
    Ok(alive)
}

/// What the two answers mean together.
fn judge(frontend: L4Addr, ordinary: Answer, own: Answer) -> Result<Option<String>, CanaryError> {
    let family = frontend.addr.family();
    match (ordinary, own) {
        (Answer::NoFamily, _) => Ok(Some(format!("{family} is not tried: this host has no {family} sockets"))),
        (Answer::Failed(Errno::ECONNREFUSED), Answer::Failed(Errno::ECONNREFUSED)) => {
            Err(CanaryError::OwnTranslated { family })
        }
        // Connected, or unreachable where the node has no route: either way the hook left it alone.
        (Answer::Failed(Errno::ECONNREFUSED), _) => Ok(None),
        (answer, _) => {
            Err(CanaryError::NotInEffect { family, frontend, answer: answer.to_string(), cgroup: own_cgroup() })
        }
    }
}

/// Connects a new UDP socket, after `prepare` has had it.
fn dial(frontend: L4Addr, prepare: impl FnOnce(BorrowedFd<'_>) -> Result<(), String>) -> Result<Answer, String> {
    let family = match frontend.addr.family() {
        Family::Ipv4 => AddressFamily::Inet,
        Family::Ipv6 => AddressFamily::Inet6,
    };
    let socket: OwnedFd = match socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None) {
        Ok(socket) => socket,
        Err(Errno::EAFNOSUPPORT) => return Ok(Answer::NoFamily),
        Err(errno) => return Err(format!("no socket: {}", errno.desc())),
    };
    prepare(socket.as_fd())?;
    let address = SockaddrStorage::from(SocketAddr::new(frontend.addr.ip(), frontend.port));
    Ok(match connect(socket.as_raw_fd(), &address) {
        Ok(()) => Answer::Connected,
        Err(errno) => Answer::Failed(errno),
    })
}

/// The cgroup v2 of this process, for the message only.
fn own_cgroup() -> String {
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = cgroups.lines().find_map(|line| line.strip_prefix("0::"));
    own.unwrap_or("(unknown)").to_owned()
}

#[cfg(test)]
mod tests;
