//! Programs at the tcx hooks of network devices (Linux 6.6): a link for each, pinned and replaced like those at cgroups.
//! A program is attached before all others, because programs of other software end the chain.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libbpf_rs::ProgramAttachType;
use libbpf_rs::query::{LinkInfo, LinkTypeInfo};
use libbpf_sys::bpf_attach_type;

use crate::attach::{self, LinkState};
use crate::chain::FirstPrograms;
use crate::hook_point::{Direction, HookPoint};
use crate::pins::Pins;
use crate::sys::{self, tc};

/// The index of the loopback device, which every network namespace has.
const LOOPBACK: u32 = 1;

/// Whether the kernel has tcx links. Takes CAP_NET_ADMIN.
pub(crate) fn is_supported() -> bool {
    let queried = tc::tcx_links(LOOPBACK, attach_type(Direction::In));
    !queried.is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL))
}

pub(crate) fn attach_type(direction: Direction) -> bpf_attach_type {
    match direction {
        Direction::In => libbpf_sys::BPF_TCX_INGRESS,
        Direction::Out => libbpf_sys::BPF_TCX_EGRESS,
    }
}

/// Makes the hook run the program; holds the link open in `open_link`.
pub(crate) fn attach(
    point: HookPoint,
    program: BorrowedFd<'_>,
    pins: &Pins,
    open_link: &mut Option<OwnedFd>,
) -> io::Result<LinkState> {
    let is_right = |link: BorrowedFd<'_>| !is_elsewhere(link, point);
    let create = || tc::tcx_create(program, point.ifindex, attach_type(point.direction));
    attach::pinned_link(&point.pin_name(), program, pins, open_link, (&is_right, &create))
}

/// The program that runs before that of the link, by its id and name, if there is one.
pub(crate) fn ahead(point: HookPoint, link: BorrowedFd<'_>, chains: &[FirstPrograms]) -> Option<(u32, String)> {
    let ours = LinkInfo::from_fd(link).ok()?;
    let (id, name) = chains.iter().find(|it| it.link == ours.id)?.first(point.direction);
    (*id != 0 && *id != ours.prog_id).then(|| (*id, name.clone()))
}

/// Makes the program the first one of its hook again. The kernel permits a program only once at a hook, so for some
/// microseconds there is none.
pub(crate) fn move_to_front(
    point: HookPoint,
    program: BorrowedFd<'_>,
    pins: &Pins,
    open_link: &mut Option<OwnedFd>,
) -> io::Result<()> {
    if let Some(link) = open_link.take() {
        sys::link_detach(link.as_fd())?;
    }
    pins.crash().pass();
    attach(point, program, pins, open_link).map(drop)
}

/// The fault of a pinned link, if it has one.
pub(crate) fn fault(
    point: HookPoint,
    program: BorrowedFd<'_>,
    (pins, open): (&Pins, Option<&OwnedFd>),
) -> Option<String> {
    attach::pinned_fault((&pins.link(&point.pin_name()), open), program, &|link| elsewhere(link, point))
}

fn elsewhere(link: BorrowedFd<'_>, point: HookPoint) -> Option<String> {
    is_elsewhere(link, point).then(|| "its link is attached to another device, or to one that is gone".into())
}

/// Whether the link is attached to the hook of this device and runs the program.
pub(crate) fn runs(point: HookPoint, program: BorrowedFd<'_>, link: BorrowedFd<'_>) -> bool {
    attach::link_fault(link, program, &|link| elsewhere(link, point)).is_none()
}

/// Whether the pinned link is known to be without its device. A link that cannot be read may still run programs.
pub(crate) fn is_gone(point: HookPoint, pins: &Pins) -> bool {
    match sys::open_link(&pins.link(&point.pin_name())) {
        Ok(link) => link.is_none_or(|link| is_elsewhere(link.as_fd(), point)),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Whether the link is not attached to the hook of this device. The index of a device may be used again: if this process
/// may query it, the device itself names its links.
fn is_elsewhere(link: BorrowedFd<'_>, point: HookPoint) -> bool {
    let Ok(info) = LinkInfo::from_fd(link.as_fd()) else { return false };
    target(&info) != Some(point)
        || tc::tcx_links(point.ifindex, attach_type(point.direction)).is_ok_and(|found| !found.contains(&info.id))
}

/// The hook that the link is attached to, with index 0 if its device was removed; `None` if it is not a tcx link.
fn target(info: &LinkInfo) -> Option<HookPoint> {
    let LinkTypeInfo::Tcx(tcx) = &info.info else { return None };
    let direction = match tcx.attach_type {
        ProgramAttachType::TcxIngress => Direction::In,
        ProgramAttachType::TcxEgress => Direction::Out,
        _ => return None,
    };
    Some(HookPoint { ifindex: tcx.ifindex, direction })
}
