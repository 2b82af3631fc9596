//! What daemon and reaper say to each other: frames of a header and entries of fixed size, in the machine's byte order,
//! for both are on the same machine. They may be of different versions after an upgrade: the reaper says first which one it
//! speaks. Whatever comes in is checked as if it came from anybody.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nodelb_core::model::addr::{Addr, Family, L4Addr, Protocol};
use nodelb_core::stale::Socket;

/// What is spoken here. Another number for whatever the other version would not understand.
const VERSION: u32 = 2;

/// The most entries in one order: bounds how long the reaper is away, and its memory.
pub const BATCH: usize = 256;

/// The most bytes of a cgroup's path, as of any path.
const MAX_PATH: usize = 4096;

/// Bytes of the header of an order.
pub const HEADER: usize = 4;
/// Bytes of an entry of an order.
pub const ENTRY: usize = 56;
/// Bytes of the inode of a socket.
const INODE: usize = 4;
/// Bytes of an entry of an answer.
pub const OUTCOME: usize = 8;
/// Bytes of the reaper's first words.
pub const HELLO: usize = 8;

/// What the reaper is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Only sockets of this cgroup and those below it count as [`Order::Dialled`]. Without this order: all.
    Within(PathBuf),
    /// The sockets with these inodes are the daemon's own: they never count as [`Order::Dialled`]. In place of those named
    /// before.
    Spare(Vec<u32>),
    /// These sockets, if they are still connected to these peers.
    Sockets(Vec<(Socket, L4Addr)>),
    /// Every UDP socket that is connected to one of these addresses, wherever it is.
    Dialled(Vec<L4Addr>),
}

/// How an entry of an order went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How many sockets were ended.
    pub destroyed: u32,
    /// The last errno, 0 without one: ENOENT for a socket that was not there any more, ESRCH for a network namespace that
    /// was not found.
    pub errno: i32,
}

impl Outcome {
    /// Whether there was nothing left to do: what was to be ended has ended by itself.
    pub fn is_over(self) -> bool {
        matches!(self.errno, 0 | libc_errno::ENOENT | libc_errno::ESRCH)
    }
}

/// The two numbers that are answers rather than errors.
pub mod libc_errno {
    use nix::errno::Errno;

    /// The socket is not there any more, or is connected to somebody else.
    pub const ENOENT: i32 = Errno::ENOENT as i32;
    /// No way to the network namespace was found.
    pub const ESRCH: i32 = Errno::ESRCH as i32;
}

/// What the reaper says first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Whether it has what it takes to enter other network namespaces.
    pub everywhere: bool,
}

impl Hello {
    /// As bytes.
    pub fn encode(self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..4].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[4] = self.everywhere.into();
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are not of this version.
    pub fn decode(bytes: [u8; HELLO]) -> io::Result<Self> {
        let [a, b, c, d, everywhere, ..] = bytes;
        match u32::from_ne_bytes([a, b, c, d]) {
            VERSION => Ok(Self { everywhere: everywhere == 1 }),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it is another version's; restart nodelb")),
        }
    }
}

const SOCKETS: u8 = 1;
const DIALLED: u8 = 2;
const WITHIN: u8 = 3;
const SPARE: u8 = 4;

impl Order {
    /// How many outcomes answer it.
    pub fn outcomes(&self) -> usize {
        match self {
            Self::Sockets(targets) => targets.len().min(BATCH),
            Self::Dialled(addresses) => addresses.len().min(BATCH),
            Self::Within(_) | Self::Spare(_) => 0,
        }
    }

    /// The order as a frame. More than [`BATCH`] entries are the caller's mistake: those beyond are left out.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Sockets(targets) => {
                let entries = targets.iter().take(BATCH).map(|(socket, peer)| encode(socket, *peer));
                frame(SOCKETS, &entries.collect::<Vec<_>>())
            }
            Self::Dialled(addresses) => {
                let entries = addresses.iter().take(BATCH).map(|to| encode(&nobody(*to), *to));
                frame(DIALLED, &entries.collect::<Vec<_>>())
            }
            Self::Within(cgroup) => {
                let bytes = cgroup.as_os_str().as_bytes().iter().take(MAX_PATH);
                frame(WITHIN, &bytes.map(|byte| [*byte]).collect::<Vec<_>>())
            }
            Self::Spare(inodes) => {
                let inodes = inodes.iter().take(usize::from(u16::MAX));
                frame(SPARE, &inodes.map(|inode| inode.to_ne_bytes()).collect::<Vec<_>>())
            }
        }
    }

    /// How many bytes follow this header.
    ///
    /// # Errors
    /// When it is no order's.
    pub fn length(header: [u8; HEADER]) -> io::Result<usize> {
        let [kind, _, low, high] = header;
        let count = usize::from(u16::from_ne_bytes([low, high]));
        match kind {
            SOCKETS | DIALLED if count <= BATCH => Ok(count * ENTRY),
            WITHIN if count <= MAX_PATH => Ok(count),
            SPARE => Ok(count * INODE),
            _ => Err(refused()),
        }
    }

    /// The order of this header and these bytes.
    ///
    /// # Errors
    /// When one of the entries can be none.
    pub fn decode(header: [u8; HEADER], body: &[u8]) -> io::Result<Self> {
        let entries = || body.as_chunks::<ENTRY>().0.iter().map(|entry| decode(entry).ok_or_else(refused));
        match header[0] {
            SOCKETS => entries().collect::<io::Result<_>>().map(Self::Sockets),
            DIALLED => entries().map(|entry| entry.map(|(_, to)| to)).collect::<io::Result<_>>().map(Self::Dialled),
            WITHIN => {
                let path = Path::new(OsStr::from_bytes(body));
                if path.is_absolute() { Ok(Self::Within(path.to_owned())) } else { Err(refused()) }
            }
            SPARE => {
                let inodes = body.as_chunks::<INODE>().0.iter().map(|inode| u32::from_ne_bytes(*inode));
                Ok(Self::Spare(inodes.collect()))
            }
            _ => Err(refused()),
        }
    }
}

fn frame<const N: usize>(kind: u8, entries: &[[u8; N]]) -> Vec<u8> {
    let [low, high] = u16::try_from(entries.len()).unwrap_or_default().to_ne_bytes();
    let mut frame = vec![kind, 0, low, high];
    frame.extend(entries.as_flattened());
    frame
}

/// Answers as bytes.
pub fn encode_outcomes(outcomes: &[Outcome]) -> Vec<u8> {
    let bytes = |outcome: &Outcome| {
        let mut bytes = [0; OUTCOME];
        bytes[..4].copy_from_slice(&outcome.destroyed.to_ne_bytes());
        bytes[4..].copy_from_slice(&outcome.errno.to_ne_bytes());
        bytes
    };
    outcomes.iter().flat_map(bytes).collect()
}

/// Answers from bytes.
pub fn decode_outcomes(bytes: &[u8]) -> Vec<Outcome> {
    let outcome = |&[a, b, c, d, e, f, g, h]: &[u8; OUTCOME]| Outcome {
        destroyed: u32::from_ne_bytes([a, b, c, d]),
        errno: i32::from_ne_bytes([e, f, g, h]),
    };
    bytes.as_chunks::<OUTCOME>().0.iter().map(outcome).collect()
}

/// In place of a socket, where any will do.
fn nobody(to: L4Addr) -> Socket {
    let source = L4Addr { port: 0, ..to };
    Socket { netns: 0, cookie: 0, family: to.addr.family(), ifindex: 0, source }
}

fn encode(socket: &Socket, peer: L4Addr) -> [u8; ENTRY] {
    let family = match socket.family {
        Family::Ipv4 => 4,
        Family::Ipv6 => 6,
    };
    let mut entry = [0; ENTRY];
    entry[..8].copy_from_slice(&socket.cookie.to_ne_bytes());
    entry[8..12].copy_from_slice(&socket.netns.to_ne_bytes());
    entry[12..16].copy_from_slice(&socket.ifindex.to_ne_bytes());
    entry[16..18].copy_from_slice(&[family, peer.protocol.number()]);
    entry[18..20].copy_from_slice(&socket.source.port.to_ne_bytes());
    entry[20..22].copy_from_slice(&peer.port.to_ne_bytes());
    entry[24..40].copy_from_slice(&socket.source.addr.octets());
    entry[40..].copy_from_slice(&peer.addr.octets());
    entry
}

fn decode(entry: &[u8; ENTRY]) -> Option<(Socket, L4Addr)> {
    fn part<const N: usize>(entry: &[u8; ENTRY], at: usize) -> Option<[u8; N]> {
        entry.get(at..)?.first_chunk().copied()
    }
    let [family, protocol] = part(entry, 16)?;
    let protocol = Protocol::from_number(protocol).filter(|protocol| *protocol != Protocol::Sctp)?;
    let address = |port, addr| Some(L4Addr::new(Addr::from_octets(addr), u16::from_ne_bytes(port), protocol));
    let socket = Socket {
        cookie: u64::from_ne_bytes(part(entry, 0)?),
        netns: u32::from_ne_bytes(part(entry, 8)?),
        ifindex: u32::from_ne_bytes(part(entry, 12)?),
        family: match family {
            4 => Family::Ipv4,
            6 => Family::Ipv6,
            _ => return None,
        },
        source: address(part(entry, 18)?, part(entry, 24)?)?,
    };
    Some((socket, address(part(entry, 20)?, part(entry, 40)?)?))
}

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "that is no order to the reaper")
}

#[cfg(test)]
#[path = "tests/wire.rs"]
mod tests;
