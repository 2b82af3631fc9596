//! Executes orders: enters each namespace once for all sockets to end in it. Owns the decision which sockets belong to
//! a service address.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};

use nix::libc;
use nodelb_core::model::addr::{Addr, Family, L4Addr};
use nodelb_core::stale::Socket;

use super::namespaces::{self, Home, Inode};
use super::wire::Outcome;
use nodelb_host::sock_diag::{self, AF_INET, AF_INET6, IPPROTO_UDP, InetDiagMessage, SockDiag, SocketId, StateFlags};

/// Ends these sockets if they are still connected to these peers.
pub(super) fn sockets(home: &Home, targets: &[(Socket, L4Addr)]) -> io::Result<Vec<Outcome>> {
    let mut outcomes = vec![Outcome { destroyed: 0, errno: libc::ESRCH }; targets.len()];
    let mut by_namespace: BTreeMap<Inode, Vec<usize>> = BTreeMap::new();
    for (place, (socket, _)) in targets.iter().enumerate() {
        by_namespace.entry(socket.netns.into()).or_default().push(place);
    }
    let wanted: BTreeSet<Inode> = by_namespace.keys().copied().collect();
    for (inode, path) in namespaces::find(home, &wanted)? {
        let places = by_namespace.remove(&inode).unwrap_or_default();
        let ended = home.visit(inode, &path, || -> io::Result<Vec<(usize, Outcome)>> {
            let mut kernel = SockDiag::open()?;
            let end = |place: usize| {
                let (socket, peer) = &targets[place];
                let ended = kernel.destroy(family(socket), peer.protocol.number(), id_of(socket, *peer));
                (place, Outcome::new(ended.map(|()| 1)))
            };
            Ok(places.iter().copied().map(end).collect())
        });
        match ended.and_then(|ended| ended) {
            Ok(ended) => ended.into_iter().for_each(|(place, outcome)| outcomes[place] = outcome),
            Err(error) => {
                let Outcome { errno, .. } = Outcome::new(Err(error));
                places.iter().for_each(|place| outcomes[*place].errno = errno);
            }
        }
    }
    Ok(outcomes)
}

/// The conditions for ending sockets by destination address. The daemon sends them, because only it knows them.
#[derive(Debug, Default)]
pub(super) struct Terms {
    /// Only sockets of this cgroup and below count; `None` for all.
    pub(super) cgroup: Option<PathBuf>,
    /// Inodes of sockets that never count.
    pub(super) spared: BTreeSet<u32>,
}

/// Ends every UDP socket that is connected to one of these addresses and meets the conditions, in every namespace.
pub(super) fn connected_to(home: &Home, terms: &Terms, addresses: &[L4Addr]) -> io::Result<Vec<Outcome>> {
    let places: BTreeMap<(Addr, u16), usize> =
        addresses.iter().enumerate().map(|(place, to)| ((to.addr, to.port), place)).collect();
    let mut outcomes = vec![Outcome::default(); addresses.len()];
    let mut bystanders = Bystanders { terms, cgroups: None };
    for (inode, path) in namespaces::all(home)? {
        let visited = home.visit(inode, &path, || end_connected_before(&places, &mut bystanders, &mut outcomes));
        if let Err(error) = visited.and_then(|ended| ended) {
            let Outcome { errno, .. } = Outcome::new(Err(error));
            // A namespace that is gone has no sockets either.
            if errno != libc::ENOENT {
                outcomes.iter_mut().for_each(|outcome| outcome.errno = errno);
            }
        }
    }
    Ok(outcomes)
}

fn end_connected_before(
    places: &BTreeMap<(Addr, u16), usize>,
    bystanders: &mut Bystanders<'_>,
    outcomes: &mut [Outcome],
) -> io::Result<()> {
    let mut kernel = SockDiag::open()?;
    for family in [AF_INET, AF_INET6] {
        let mut found = Vec::new();
        let request = sock_diag::all(family, IPPROTO_UDP, StateFlags::ESTABLISHED);
        kernel.dump(&request, |socket| {
            let id = &socket.header.socket_id;
            if let Some(place) = places.get(&(id.destination_address.into(), id.destination_port)) {
                found.push((*place, socket.clone()));
            }
        })?;
        for (place, socket) in found {
            if bystanders.have(&socket)? {
                continue;
            }
            let ended = kernel.destroy(family, IPPROTO_UDP, socket.header.socket_id);
            let ended = Outcome::new(ended.map(|()| 1));
            outcomes[place].destroyed += ended.destroyed;
            if !ended.is_over() {
                outcomes[place].errno = ended.errno;
            }
        }
    }
    Ok(())
}

/// The sockets that the datapath does not translate and that must be left alone.
struct Bystanders<'a> {
    terms: &'a Terms,
    /// The ids of the cgroups; looked up when the first socket is found.
    cgroups: Option<BTreeSet<u64>>,
}

impl Bystanders<'_> {
    fn have(&mut self, socket: &InetDiagMessage) -> io::Result<bool> {
        if let (Some(cgroup), None) = (&self.terms.cgroup, &self.cgroups) {
            self.cgroups = Some(cgroups_below(cgroup)?);
        }
        let is_outside = self.cgroups.as_ref().is_some_and(|ids| !socket.cgroup.is_some_and(|id| ids.contains(&id)));
        Ok(self.terms.spared.contains(&socket.header.inode) || is_outside)
    }
}

/// The ids of a cgroup and all cgroups below it, which are inode numbers.
fn cgroups_below(cgroup: &Path) -> io::Result<BTreeSet<u64>> {
    use std::os::unix::fs::MetadataExt;
    let mut ids = BTreeSet::from([fs::metadata(cgroup)?.ino()]);
    let mut waiting = vec![cgroup.to_path_buf()];
    while let Some(directory) = waiting.pop() {
        // A cgroup that was removed meanwhile has no sockets.
        for entry in fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                ids.insert(entry.ino());
                waiting.push(entry.path());
            }
        }
    }
    Ok(ids)
}

fn family(socket: &Socket) -> u8 {
    match socket.family {
        Family::Ipv4 => AF_INET,
        Family::Ipv6 => AF_INET6,
    }
}

/// The socket's addresses in the kernel's form: in the family of the socket, not of the address.
fn id_of(socket: &Socket, peer: L4Addr) -> SocketId {
    let form = |addr: Addr| match socket.family {
        Family::Ipv6 => IpAddr::V6(addr.octets().into()),
        Family::Ipv4 => addr.ip(),
    };
    // The kernel has the low half first in either byte order.
    let low_first = if cfg!(target_endian = "big") { socket.cookie.rotate_left(32) } else { socket.cookie };
    SocketId {
        source_port: socket.source.port,
        destination_port: peer.port,
        source_address: form(socket.source.addr),
        destination_address: form(peer.addr),
        interface_id: socket.ifindex,
        cookie: low_first.to_ne_bytes(),
    }
}
