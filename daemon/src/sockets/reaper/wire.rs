//! The protocol between daemon and reaper: frames of a header and entries of fixed size, in the machine's byte order,
//! because both run on the same machine. They may have different versions after an upgrade: the reaper first sends its
//! protocol version. All received data is checked as untrusted.

use std::ffi::OsStr;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::libc;
use nodelb_core::model::addr::{Addr, Family, L4Addr, Protocol};
use nodelb_core::model::ipsec::{Policy, PolicyDirection, PortMask, Selector};
use nodelb_core::model::source_range::SourceRange;
use nodelb_core::stale::Socket;
use nodelb_datapath::packets::ForeignConnections;
use nodelb_datapath::xtables::LegacyTables;
use nodelb_datapath::{Direction, FilterChange};
use nodelb_report::problems::DroppingChain;

use crate::sockets::nf_tables::ForeignRules;

/// The version of this protocol. It must change with every incompatible change.
const VERSION: u32 = 7;

/// The maximum number of entries in one order, which limits the reaper's memory and the duration of an order.
pub const BATCH: usize = 256;

/// The maximum length of a cgroup's path in bytes, as of any path.
const MAX_PATH: usize = 4096;

// Sizes in bytes: of an order's header and its entries, which are sockets, or what the names say; and of what the reaper
// sends, an answer's entries and its first message.
pub const HEADER: usize = 4;
pub const ENTRY: usize = 56;
const INODE: usize = 4;
const LEGACY_TABLES: usize = 2;
const PORTS: usize = 4;
const FILTER_CHANGE: usize = 8;
const POLICY: usize = 52;
pub const OUTCOME: usize = 8;
pub const HELLO: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Limits [`Order::ConnectedTo`] to the sockets of this cgroup and those below it. Without this order, all sockets
    /// count.
    Within(PathBuf),
    /// Inodes of the daemon's own sockets, which [`Order::ConnectedTo`] never ends. Replaces the previous list.
    Spare(Vec<u32>),
    /// Ends these sockets if they are still connected to these peers.
    Sockets(Vec<(Socket, L4Addr)>),
    /// Ends every UDP socket that is connected to one of these addresses, in every namespace.
    ConnectedTo(Vec<L4Addr>),
    /// Lists the connections of others with source ports in this range, which takes CAP_NET_ADMIN. The first byte comes
    /// with the descriptor of a file, into which the reaper writes them ([`encode_ends`]).
    Masqueraded(RangeInclusive<u16>),
    /// Lists the policies of IPsec, which takes CAP_NET_ADMIN, as [`Order::Masqueraded`] lists connections
    /// ([`encode_policies`]).
    Policies,
    /// Lists what others have in nftables and in these tables of iptables-legacy, which takes CAP_NET_ADMIN, in the same way
    /// ([`encode_rules`]).
    Rules(LegacyTables),
    /// Changes nodelb's filters at a device, which takes CAP_NET_ADMIN. The first byte of a [`FilterChange::Replace`]
    /// comes with the descriptor of the program.
    Filter { ifindex: u32, change: FilterChange },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Number of ended sockets; for [`Order::Masqueraded`] the connections, for [`Order::Policies`] the policies, for
    /// [`Order::Rules`] the chains that drop forwarded packets, for [`Order::Filter`] 0.
    pub destroyed: u32,
    /// The last errno, or 0: ENOENT if the socket no longer existed, ESRCH if the network namespace was not found.
    pub errno: i32,
}

impl Outcome {
    /// EIO stands for an error without a number.
    pub(super) fn new(result: io::Result<u32>) -> Self {
        let unknown =
            |error: &io::Error| if error.kind() == io::ErrorKind::NotFound { libc::ENOENT } else { libc::EIO };
        match result {
            Ok(destroyed) => Self { destroyed, errno: 0 },
            Err(error) => Self { destroyed: 0, errno: error.raw_os_error().unwrap_or_else(|| unknown(&error)) },
        }
    }

    /// Whether nothing remained to be done because the socket has ended already.
    pub fn is_over(self) -> bool {
        matches!(self.errno, 0 | libc::ENOENT | libc::ESRCH)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Whether the reaper has the capabilities to enter other network namespaces.
    pub everywhere: bool,
}

impl Hello {
    pub fn encode(self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..4].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[4] = self.everywhere.into();
        bytes
    }

    pub fn decode(bytes: [u8; HELLO]) -> io::Result<Self> {
        let [a, b, c, d, everywhere, ..] = bytes;
        match u32::from_ne_bytes([a, b, c, d]) {
            VERSION => Ok(Self { everywhere: everywhere == 1 }),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the reaper has another version; restart nodelb")),
        }
    }
}

const SOCKETS: u8 = 1;
const CONNECTED_TO: u8 = 2;
const WITHIN: u8 = 3;
const SPARE: u8 = 4;
const RULES: u8 = 5;
const FILTER: u8 = 6;
const MASQUERADED: u8 = 7;
const POLICIES: u8 = 8;

/// The changes of filters, by their number.
const FILTER_CHANGES: [FilterChange; 6] = [
    FilterChange::AddQdisc,
    FilterChange::RemoveQdisc,
    FilterChange::Replace(Direction::In),
    FilterChange::Replace(Direction::Out),
    FilterChange::Remove(Direction::In),
    FilterChange::Remove(Direction::Out),
];

impl Order {
    pub fn outcomes(&self) -> usize {
        match self {
            Self::Sockets(targets) => targets.len().min(BATCH),
            Self::ConnectedTo(addresses) => addresses.len().min(BATCH),
            Self::Within(_) | Self::Spare(_) => 0,
            Self::Rules(_) | Self::Masqueraded(_) | Self::Policies | Self::Filter { .. } => 1,
        }
    }

    /// Encodes the order as a frame. The caller must not pass more than [`BATCH`] entries: the others are left out.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Sockets(targets) => {
                let entries = targets.iter().take(BATCH).map(|(socket, peer)| encode(socket, *peer));
                frame(SOCKETS, &entries.collect::<Vec<_>>())
            }
            Self::ConnectedTo(addresses) => {
                let entries = addresses.iter().take(BATCH).map(|to| encode(&any_source(*to), *to));
                frame(CONNECTED_TO, &entries.collect::<Vec<_>>())
            }
            Self::Within(cgroup) => {
                let bytes = cgroup.as_os_str().as_bytes().iter().take(MAX_PATH);
                frame(WITHIN, &bytes.map(|byte| [*byte]).collect::<Vec<_>>())
            }
            Self::Rules(LegacyTables { v4, v6 }) => frame(RULES, &[[u8::from(*v4), u8::from(*v6)]]),
            Self::Masqueraded(ports) => {
                let [[a, b], [c, d]] = [ports.start(), ports.end()].map(|port| port.to_ne_bytes());
                frame(MASQUERADED, &[[a, b, c, d]])
            }
            Self::Policies => frame::<0>(POLICIES, &[]),
            Self::Filter { ifindex, change } => frame(FILTER, &[encode_filter(*ifindex, *change)]),
            Self::Spare(inodes) => {
                let inodes = inodes.iter().take(usize::from(u16::MAX));
                frame(SPARE, &inodes.map(|inode| inode.to_ne_bytes()).collect::<Vec<_>>())
            }
        }
    }

    /// The number of bytes that follow this header.
    pub fn length(header: [u8; HEADER]) -> io::Result<usize> {
        let [kind, _, low, high] = header;
        let count = usize::from(u16::from_ne_bytes([low, high]));
        match kind {
            SOCKETS | CONNECTED_TO if count <= BATCH => Ok(count * ENTRY),
            WITHIN if count <= MAX_PATH => Ok(count),
            SPARE => Ok(count * INODE),
            RULES if count == 1 => Ok(LEGACY_TABLES),
            MASQUERADED if count == 1 => Ok(PORTS),
            POLICIES if count == 0 => Ok(0),
            FILTER if count == 1 => Ok(FILTER_CHANGE),
            _ => Err(refused()),
        }
    }

    pub fn decode(header: [u8; HEADER], body: &[u8]) -> io::Result<Self> {
        let entries = || body.as_chunks::<ENTRY>().0.iter().map(|entry| decode(entry).ok_or_else(refused));
        match header[0] {
            SOCKETS => entries().collect::<io::Result<_>>().map(Self::Sockets),
            CONNECTED_TO => {
                entries().map(|entry| entry.map(|(_, to)| to)).collect::<io::Result<_>>().map(Self::ConnectedTo)
            }
            WITHIN => {
                let path = Path::new(OsStr::from_bytes(body));
                if path.is_absolute() { Ok(Self::Within(path.to_owned())) } else { Err(refused()) }
            }
            SPARE => {
                let inodes = body.as_chunks::<INODE>().0.iter().map(|inode| u32::from_ne_bytes(*inode));
                Ok(Self::Spare(inodes.collect()))
            }
            RULES => {
                let &[v4, v6] = body else { return Err(refused()) };
                Ok(Self::Rules(LegacyTables { v4: v4 != 0, v6: v6 != 0 }))
            }
            MASQUERADED => {
                let &[a, b, c, d] = body else { return Err(refused()) };
                Ok(Self::Masqueraded(u16::from_ne_bytes([a, b])..=u16::from_ne_bytes([c, d])))
            }
            POLICIES => Ok(Self::Policies),
            FILTER => decode_filter(body).ok_or_else(refused),
            _ => Err(refused()),
        }
    }
}

fn encode_filter(ifindex: u32, change: FilterChange) -> [u8; FILTER_CHANGE] {
    let number = FILTER_CHANGES.iter().position(|known| *known == change);
    let number = number.and_then(|number| u32::try_from(number).ok()).unwrap_or(u32::MAX);
    let mut entry = [0; FILTER_CHANGE];
    entry[..4].copy_from_slice(&ifindex.to_ne_bytes());
    entry[4..].copy_from_slice(&number.to_ne_bytes());
    entry
}

fn decode_filter(body: &[u8]) -> Option<Order> {
    let &[a, b, c, d, e, f, g, h] = body else { return None };
    let number = usize::try_from(u32::from_ne_bytes([e, f, g, h])).ok()?;
    Some(Order::Filter { ifindex: u32::from_ne_bytes([a, b, c, d]), change: *FILTER_CHANGES.get(number)? })
}

fn frame<const N: usize>(kind: u8, entries: &[[u8; N]]) -> Vec<u8> {
    let [low, high] = u16::try_from(entries.len()).unwrap_or_default().to_ne_bytes();
    let mut frame = vec![kind, 0, low, high];
    frame.extend(entries.as_flattened());
    frame
}

pub fn encode_outcomes(outcomes: &[Outcome]) -> Vec<u8> {
    let bytes = |outcome: &Outcome| {
        let mut bytes = [0; OUTCOME];
        bytes[..4].copy_from_slice(&outcome.destroyed.to_ne_bytes());
        bytes[4..].copy_from_slice(&outcome.errno.to_ne_bytes());
        bytes
    };
    outcomes.iter().flat_map(bytes).collect()
}

pub fn decode_outcomes(bytes: &[u8]) -> Vec<Outcome> {
    let outcome = |&[a, b, c, d, e, f, g, h]: &[u8; OUTCOME]| Outcome {
        destroyed: u32::from_ne_bytes([a, b, c, d]),
        errno: i32::from_ne_bytes([e, f, g, h]),
    };
    bytes.as_chunks::<OUTCOME>().0.iter().map(outcome).collect()
}

pub fn encode_ends(connections: &ForeignConnections) -> Vec<u8> {
    let entries = connections.iter().map(|(backend, source)| {
        let socket = Socket { source: *source, ..any_source(*backend) };
        encode(&socket, *backend)
    });
    entries.flatten().collect()
}

/// Decodes connections. Entries that are not valid are left out.
pub fn decode_ends(bytes: &[u8]) -> ForeignConnections {
    let ends = |entry| decode(entry).map(|(socket, backend)| (backend, socket.source));
    bytes.as_chunks::<ENTRY>().0.iter().filter_map(ends).collect()
}

pub fn encode_policies(policies: &[Policy]) -> Vec<u8> {
    policies.iter().flat_map(encode_policy).collect()
}

/// Decodes policies. Entries that are not valid are left out.
pub fn decode_policies(bytes: &[u8]) -> Vec<Policy> {
    bytes.as_chunks::<POLICY>().0.iter().filter_map(decode_policy).collect()
}

/// Bits of the first byte of rules: kube-proxy's.
const HAS_TABLE: u8 = 1;
const HAS_CHAINS: u8 = 2;
/// Instead of a family.
const BOTH: u8 = 1;

/// A chain in rules is its family (4, 6, or 1 for both) and its name, which a zero byte ends.
pub(super) fn encode_rules(ForeignRules { has_table, has_chains, dropping }: &ForeignRules) -> Vec<u8> {
    let bit = |is_there, bit| if is_there { bit } else { 0 };
    let mut bytes = vec![bit(*has_table, HAS_TABLE) | bit(*has_chains, HAS_CHAINS)];
    for DroppingChain { name, family } in dropping {
        bytes.push(match family {
            Some(Family::Ipv4) => 4,
            Some(Family::Ipv6) => 6,
            None => BOTH,
        });
        bytes.extend(name.bytes().filter(|byte| *byte != 0).chain([0]));
    }
    bytes
}

/// Decodes rules.
///
/// # Errors
/// If there is nothing. Chains that are not valid are left out.
pub(crate) fn decode_rules(bytes: &[u8]) -> io::Result<ForeignRules> {
    let (bits, chains) = bytes.split_first().ok_or_else(refused)?;
    let chain = |bytes: &[u8]| {
        let (family, name) = bytes.split_first()?;
        let family = match family {
            4 => Some(Family::Ipv4),
            6 => Some(Family::Ipv6),
            &BOTH => None,
            _ => return None,
        };
        Some(DroppingChain { name: str::from_utf8(name).ok()?.to_owned(), family })
    };
    Ok(ForeignRules {
        has_table: bits & HAS_TABLE != 0,
        has_chains: bits & HAS_CHAINS != 0,
        dropping: chains.split(|byte| *byte == 0).filter_map(chain).collect(),
    })
}

fn encode_policy(policy: &Policy) -> [u8; POLICY] {
    let Selector { family, source, target, source_port, target_port, protocol } = policy.selector;
    let mut entry = [0; POLICY];
    let numbers = [
        policy.direction as u8,
        u8::from(policy.is_protected),
        u8::from(family == Family::Ipv4),
        protocol,
        source.prefix,
        target.prefix,
    ];
    entry[..numbers.len()].copy_from_slice(&numbers);
    entry[8..12].copy_from_slice(&policy.priority.to_ne_bytes());
    let ports = [source_port.port, source_port.mask, target_port.port, target_port.mask].map(u16::to_ne_bytes);
    entry[12..20].copy_from_slice(ports.as_flattened());
    entry[20..36].copy_from_slice(&source.addr.octets());
    entry[36..].copy_from_slice(&target.addr.octets());
    entry
}

fn decode_policy(entry: &[u8; POLICY]) -> Option<Policy> {
    let [direction, is_protected, is_v4, protocol, source_prefix, target_prefix] = part(entry, 0)?;
    let number = |at| part(entry, at).map(u16::from_ne_bytes);
    let port = |at| Some(PortMask { port: number(at)?, mask: number(at + 2)? });
    let range = |at, prefix: u8| {
        let addr = Addr::from_octets(part(entry, at)?);
        (prefix <= 128).then(|| SourceRange::new(addr, prefix))
    };
    let selector = Selector {
        family: if is_v4 == 0 { Family::Ipv6 } else { Family::Ipv4 },
        source: range(20, source_prefix)?,
        target: range(36, target_prefix)?,
        source_port: port(12)?,
        target_port: port(16)?,
        protocol,
    };
    let direction = *PolicyDirection::ALL.get(usize::from(direction))?;
    Some(Policy { direction, priority: u32::from_ne_bytes(part(entry, 8)?), selector, is_protected: is_protected != 0 })
}

/// The bytes of an entry from this one on.
fn part<const N: usize>(entry: &[u8], at: usize) -> Option<[u8; N]> {
    entry.get(at..)?.first_chunk().copied()
}

/// A placeholder for a socket, where any will do.
fn any_source(to: L4Addr) -> Socket {
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
    let [family, protocol] = part(entry, 16)?;
    let protocol = Protocol::from_repr(protocol).filter(|protocol| *protocol != Protocol::Sctp)?;
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
    io::Error::new(io::ErrorKind::InvalidData, "not a valid request to the reaper")
}

#[cfg(test)]
#[path = "tests/wire.rs"]
mod tests;
