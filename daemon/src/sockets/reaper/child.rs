//! The reaper process itself: it drops privileges, tests the remaining ones, and runs the loop that executes orders.

use std::fs::{self, File};
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use caps::{CapSet, Capability, CapsHashSet};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::geteuid;
use nodelb_cli::exit::{Code, Failure};
use nodelb_datapath::xtables::LegacyTables;
use nodelb_datapath::{ChangeFilters, InThisProcess};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::destroy::{self, Terms};
use super::namespaces::Home;
use super::wire::{self, HEADER, Hello, Order, Outcome};
use crate::sockets::conntrack;
use crate::sockets::nf_tables;
use crate::sockets::xfrm;

const KEPT: [Capability; 3] = [Capability::CAP_NET_ADMIN, Capability::CAP_SYS_ADMIN, Capability::CAP_SYS_PTRACE];

const NAME: &std::ffi::CStr = c"nodelb-reaper";

/// Executes orders from standard input until it is closed. The other end is either a daemon that has started this
/// process, or one that has connected to the socket for which systemd starts it.
///
/// # Errors
/// If standard input has no peer or one without permission, or the peer sends an invalid order.
pub fn run() -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::message(Code::System, format!("reaper: {error}"));
    let line = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from).map_err(failed)?;
    if line.peer_addr().is_err() {
        let message = "the reaper is started by `nodelb run` or systemd, not by hand";
        return Err(Failure::message(Code::Usage, message));
    }
    check_peer(&line)?;
    close_all_but(&line).map_err(failed)?;
    let everywhere = give_up_privileges().map_err(failed)?;
    let home = Home::here().map_err(failed)?;
    match serve(line, Hello { everywhere }, &home) {
        // The daemon has ended, and with it its orders.
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Ok(()),
        other => other.map_err(failed),
    }
}

/// Only root and the user that started this process may give orders. The check uses the peer's user at the time of the
/// connect.
fn check_peer(line: &UnixStream) -> Result<(), Failure> {
    let refused = |why: String| Failure::message(Code::Permission, format!("reaper: {why}: refusing requests"));
    let peer = getsockopt(line, sockopt::PeerCredentials)
        .map_err(|error| refused(format!("cannot determine the peer process ({error})")))?;
    if peer.uid() == 0 || peer.uid() == geteuid().as_raw() {
        return Ok(());
    }
    Err(refused(format!("the peer is process {} of user {}", peer.pid(), peer.uid())))
}

fn serve(mut line: UnixStream, hello: Hello, home: &Home) -> io::Result<()> {
    line.write_all(&hello.encode())?;
    let mut terms = Terms::default();
    while let Some((header, descriptor)) = receive(&mut line)? {
        let mut body = vec![0; Order::length(header)?];
        line.read_exact(&mut body)?;
        let outcomes = match Order::decode(header, &body)? {
            Order::Within(cgroup) => {
                terms.cgroup = Some(cgroup);
                continue;
            }
            Order::Spare(inodes) => {
                terms.spared = inodes.into_iter().collect();
                continue;
            }
            Order::Sockets(targets) => destroy::sockets(home, &targets)?,
            Order::ConnectedTo(addresses) => destroy::connected_to(home, &terms, &addresses)?,
            Order::Masqueraded(ports) => vec![Outcome::new(masqueraded(&ports, descriptor))],
            Order::Policies => vec![Outcome::new(policies(descriptor))],
            Order::Rules(legacy) => vec![Outcome::new(rules(legacy, descriptor))],
            Order::Filter { ifindex, change } => {
                let program = descriptor.as_ref().map(OwnedFd::as_fd);
                vec![Outcome::new(InThisProcess.change(ifindex, change, program).map(|()| 0))]
            }
        };
        home.check()?;
        line.write_all(&wire::encode_outcomes(&outcomes))?;
    }
    Ok(())
}

/// The header of the next order, and the descriptor that came with it; `None` at the end of the connection.
fn receive(line: &mut UnixStream) -> io::Result<Option<([u8; HEADER], Option<OwnedFd>)>> {
    let mut header = [0; HEADER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(&*line, &mut [IoSliceMut::new(&mut header)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
    if received == 0 {
        return Ok(None);
    }
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    line.read_exact(&mut header[received..])?;
    Ok(Some((header, descriptor)))
}

/// Writes the connections of others with source ports in this range into the file; returns their number.
fn masqueraded(ports: &RangeInclusive<u16>, file: Option<OwnedFd>) -> io::Result<u32> {
    let found = conntrack::masqueraded(ports)?;
    File::from(file.ok_or(io::ErrorKind::InvalidInput)?).write_all(&wire::encode_ends(&found))?;
    Ok(u32::try_from(found.len()).unwrap_or(u32::MAX))
}

/// Writes the policies of IPsec into the file; returns their number.
fn policies(file: Option<OwnedFd>) -> io::Result<u32> {
    let found = xfrm::read()?;
    File::from(file.ok_or(io::ErrorKind::InvalidInput)?).write_all(&wire::encode_policies(&found))?;
    Ok(u32::try_from(found.len()).unwrap_or(u32::MAX))
}

/// Writes the rules of others in the network namespace of this process into the file; returns the number of chains that drop
/// forwarded packets.
fn rules(legacy: LegacyTables, file: Option<OwnedFd>) -> io::Result<u32> {
    let found = nf_tables::find(legacy)?;
    File::from(file.ok_or(io::ErrorKind::InvalidInput)?).write_all(&wire::encode_rules(&found))?;
    Ok(u32::try_from(found.dropping.len()).unwrap_or(u32::MAX))
}

/// Closes descriptors that the daemon may have inherited and passed on, except the standard streams.
fn close_all_but(line: &UnixStream) -> io::Result<()> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")?.filter_map(|entry| number(entry.ok()?)).collect();
    for number in open.into_iter().filter(|number| *number > 2 && *number != line.as_raw_fd()) {
        // The descriptor of the directory itself is closed already.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

/// Keeps only the needed capabilities, in one thread, such that no executed program can gain any; returns whether they
/// suffice for other network namespaces.
fn give_up_privileges() -> io::Result<bool> {
    let refused = |error: caps::errors::CapsError| io::Error::other(error.to_string());
    nix::sys::prctl::set_name(NAME)?;
    nix::sys::prctl::set_no_new_privs()?;
    std::env::set_current_dir("/")?;
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).map_err(refused)? {
        for capability in caps::read(None, CapSet::Bounding).map_err(refused)? {
            if !KEPT.contains(&capability) {
                caps::drop(None, CapSet::Bounding, capability).map_err(refused)?;
            }
        }
    }
    let permitted = caps::read(None, CapSet::Permitted).map_err(refused)?;
    let kept: CapsHashSet = KEPT.into_iter().filter(|capability| permitted.contains(capability)).collect();
    caps::clear(None, CapSet::Ambient).map_err(refused)?;
    caps::set(None, CapSet::Effective, &kept).map_err(refused)?;
    caps::set(None, CapSet::Permitted, &kept).map_err(refused)?;
    caps::clear(None, CapSet::Inheritable).map_err(refused)?;
    Ok(kept.len() == KEPT.len())
}
