//! Programs at network devices of kernels without tcx links: filters with direct action at the qdisc `clsact`. They
//! stay until they are removed, and one request replaces their program. A process with CAP_NET_ADMIN makes each change
//! (`crate::filter_changes`).
//!
//! Several programs may use the qdisc. nodelb records that it has added one by an empty directory `clsact-IFINDEX` next
//! to the pins of links. It removes only such a qdisc, and only if no other program has a filter there.

use std::io;
use std::os::fd::BorrowedFd;

use libbpf_rs::Program;

use crate::attach::LinkState;
use crate::filter_changes::{ChangeFilters, FilterChange, HANDLE, NAME, PRIORITY};
use crate::filters;
use crate::hook_point::{Direction, HookPoint};
use crate::load::listening;
use crate::pins::Pins;
use crate::sys::tc;

pub(crate) fn attach(
    point: HookPoint,
    program: BorrowedFd<'_>,
    pins: &Pins,
    changes: &dyn ChangeFilters,
) -> io::Result<LinkState> {
    let is_there = program_at(point)?.is_some();
    if !is_there {
        add_qdisc(point.ifindex, pins, changes)?;
    }
    changes.change(point.ifindex, FilterChange::Replace(point.direction), Some(program))?;
    pins.crash().pass();
    Ok(if is_there { LinkState::Updated } else { LinkState::Created })
}

fn add_qdisc(ifindex: u32, pins: &Pins, changes: &dyn ChangeFilters) -> io::Result<()> {
    match changes.change(ifindex, FilterChange::AddQdisc, None) {
        Ok(()) => {
            pins.crash().pass();
            pins.mark(&marker(ifindex), true)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// The name of the directory that marks a qdisc added by nodelb.
pub(crate) fn marker(ifindex: u32) -> String {
    format!("{MARKER}{ifindex}")
}

pub(crate) const MARKER: &str = "clsact-";

pub(crate) fn fault(point: HookPoint, program: BorrowedFd<'_>) -> Option<String> {
    match (program_at(point), Program::id_from_fd(program)) {
        (Ok(Some(runs)), Ok(ours)) if runs == ours => None,
        (Ok(Some(_)), Ok(_)) => Some("its filter runs a different program".into()),
        (Ok(None), _) => Some("its filter is gone".into()),
        (Err(error), _) => Some(format!("its filter cannot be read: {error}")),
        (_, Err(error)) => Some(format!("its program cannot be read: {error}")),
    }
}

/// The name of the filter that runs before nodelb's, if there is one.
pub(crate) fn ahead(point: HookPoint) -> Option<String> {
    let ours = NAME.strip_suffix(b"\0").unwrap_or(NAME);
    let first = filters::first(point.ifindex, point.direction).ok().flatten()?;
    (first.as_bytes() != ours).then_some(first)
}

/// The id of the program that nodelb's filter at the hook runs; `None` without such a filter.
pub(crate) fn program_at(point: HookPoint) -> io::Result<Option<u32>> {
    let attach_point = match point.direction {
        Direction::In => libbpf_sys::BPF_TC_INGRESS,
        Direction::Out => libbpf_sys::BPF_TC_EGRESS,
    };
    // libbpf prints the kernel's message about a refusal; the error has the reason.
    match listening(|| tc::filter_program(point.ifindex, attach_point, (HANDLE, PRIORITY))).0 {
        Ok(id) => Ok(Some(id)),
        // Without a qdisc, the kernel answers EINVAL.
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the filters of a device, and the qdisc if nodelb has added it and no other program uses it. Returns the
/// number of removed filters. The device may no longer exist.
pub(crate) fn remove(ifindex: u32, pins: &Pins, changes: &dyn ChangeFilters) -> io::Result<usize> {
    let mut removed = 0;
    for point in HookPoint::at(ifindex).into_iter().rev() {
        if program_at(point)?.is_some() {
            changes.change(ifindex, FilterChange::Remove(point.direction), None)?;
            pins.crash().pass();
            removed += 1;
        }
    }
    let marker = marker(ifindex);
    if pins.is_marked(&marker) {
        match changes.change(ifindex, FilterChange::RemoveQdisc, None) {
            Ok(()) => pins.crash().pass(),
            Err(error) if is_absent(&error) || is_used(&error) => {}
            Err(error) => return Err(error),
        }
        pins.mark(&marker, false)?;
    }
    Ok(removed)
}

/// Whether the qdisc has filters of other programs.
fn is_used(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL | libc::ENODEV))
}
