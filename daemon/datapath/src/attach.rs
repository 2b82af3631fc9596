//! The hooks: the programs that are attached to them, and how they are kept attached. A link is pinned, so that it
//! outlives the process, and its program is replaced in one step, so that the hook always has a program. The daemon
//! also holds the link open, so that its program stays attached when the pin is removed.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::Program;
use libbpf_rs::query::{LinkInfo, LinkTypeInfo, ProgInfoIter};
use libbpf_sys::bpf_attach_type;

use crate::crash::CrashPoint;
use crate::error::{OpenError, failed};
use crate::pins::{self, Pins, UNFINISHED, remove_file};
use crate::sys;

/// A hook of the kernel and the program of `bpf/sock.bpf.c` that runs at it; both have the same name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hook {
    pub(crate) name: &'static str,
    attach_type: bpf_attach_type,
}

impl Hook {
    /// Whether its program translates backends' addresses back.
    pub(crate) fn is_of_answers(&self) -> bool {
        ["recvmsg", "getpeername"].iter().any(|it| self.name.starts_with(it))
    }
}

/// The hooks in the order of attaching: those that translate answers back come before those that translate
/// destinations, so that a socket which is translated in between sees the service's address.
pub(crate) const HOOKS: [Hook; 10] = [
    Hook { name: "recvmsg4", attach_type: libbpf_sys::BPF_CGROUP_UDP4_RECVMSG },
    Hook { name: "recvmsg6", attach_type: libbpf_sys::BPF_CGROUP_UDP6_RECVMSG },
    Hook { name: "getpeername4", attach_type: libbpf_sys::BPF_CGROUP_INET4_GETPEERNAME },
    Hook { name: "getpeername6", attach_type: libbpf_sys::BPF_CGROUP_INET6_GETPEERNAME },
    Hook { name: "connect4", attach_type: libbpf_sys::BPF_CGROUP_INET4_CONNECT },
    Hook { name: "connect6", attach_type: libbpf_sys::BPF_CGROUP_INET6_CONNECT },
    Hook { name: "sendmsg4", attach_type: libbpf_sys::BPF_CGROUP_UDP4_SENDMSG },
    Hook { name: "sendmsg6", attach_type: libbpf_sys::BPF_CGROUP_UDP6_SENDMSG },
    Hook { name: "bind4", attach_type: libbpf_sys::BPF_CGROUP_INET4_BIND },
    Hook { name: "bind6", attach_type: libbpf_sys::BPF_CGROUP_INET6_BIND },
];

/// Hooks at which only an older nodelb has programs. Their links exist only through their pins, so removing the pins
/// detaches them.
const RETIRED: [Hook; 2] = [
    Hook { name: "post_bind4", attach_type: libbpf_sys::BPF_CGROUP_INET4_POST_BIND },
    Hook { name: "post_bind6", attach_type: libbpf_sys::BPF_CGROUP_INET6_POST_BIND },
];

/// All hooks that any version of nodelb uses, in the order of attaching. They are detached in reverse order.
pub(crate) fn all_hooks() -> impl DoubleEndedIterator<Item = &'static Hook> {
    HOOKS.iter().chain(&RETIRED)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// The link was pinned and attached to the right cgroup; it runs the new program now.
    Updated,
    Created,
    /// The pin was not a link, or its link was attached to another cgroup or to a removed one; a new link has replaced
    /// it.
    Replaced,
    /// The link was attached all the time, but its pin was removed; it is pinned again.
    Pinned,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFault {
    pub hook: &'static str,
    pub reason: String,
}

impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hook {}: {}", self.hook, self.reason)
    }
}

/// The loaded programs, in the order of [`HOOKS`], and the cgroup that they are attached to.
#[derive(Debug)]
pub(crate) struct Attachment {
    programs: Vec<OwnedFd>,
    pub(crate) cgroup: PathBuf,
}

impl Attachment {
    pub(crate) fn new(programs: Vec<OwnedFd>, cgroup: PathBuf) -> Self {
        debug_assert_eq!(programs.len(), HOOKS.len(), "a program for each hook");
        Self { programs, cgroup }
    }

    /// Makes every hook run the program of this attachment, and holds each link open.
    pub(crate) fn attach(
        &self,
        pins: &Pins,
        open_links: &mut OpenLinks,
    ) -> Result<Vec<(&'static str, LinkState)>, OpenError> {
        let cgroup = Cgroup::open(&self.cgroup)?;
        let each = HOOKS.iter().zip(&self.programs).zip(&mut open_links.0);
        let states = each.map(|((hook, program), open_links)| {
            let state = attach(*hook, program.as_fd(), &cgroup, pins, open_links);
            Ok((hook.name, state.map_err(|error| self.refused(&error, *hook, pins))?))
        });
        let states = states.collect::<Result<Vec<_>, OpenError>>()?;
        for hook in RETIRED {
            let pin = pins.link(hook.name);
            remove_file(&pin, pins.crash()).map_err(failed("removing", &pin))?;
        }
        Ok(states)
    }

    /// The error for a hook that cannot be attached.
    fn refused(&self, error: &io::Error, hook: Hook, pins: &Pins) -> OpenError {
        let cause = match error.raw_os_error() {
            Some(libc::EPERM) => exclusive_at(&self.cgroup, hook),
            Some(libc::E2BIG) => full_at(&self.cgroup, hook),
            _ => None,
        };
        cause.unwrap_or_else(|| failed("attaching", &pins.link(hook.name))(error))
    }
}

/// The open links, in the order of [`HOOKS`]. A program stays attached as long as its link is open or pinned.
#[derive(Debug, Default)]
pub(crate) struct OpenLinks([Option<OwnedFd>; HOOKS.len()]);

/// Checks the hooks at any time and from any thread, without synchronising with the datapath's owner.
#[derive(Clone, Debug)]
pub struct Links {
    pub(crate) attachment: Arc<Attachment>,
    pub(crate) directory: PathBuf,
    pub(crate) open: Arc<Mutex<OpenLinks>>,
}

impl Links {
    /// The faults of the links, usually none. Makes a few system calls per hook.
    pub fn faults(&self) -> Vec<LinkFault> {
        let cgroup = match Cgroup::open(&self.attachment.cgroup) {
            Ok(cgroup) => cgroup,
            Err(error) => {
                return HOOKS.iter().map(|hook| LinkFault { hook: hook.name, reason: error.to_string() }).collect();
            }
        };
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let each = HOOKS.iter().zip(&self.attachment.programs).zip(&open.0);
        each.filter_map(|((hook, program), open)| {
            let pin = (self.directory.join(hook.name), open.as_ref());
            let reason = fault(*hook, program.as_fd(), &cgroup, (&pin.0, pin.1))?;
            Some(LinkFault { hook: hook.name, reason })
        })
        .collect()
    }

    /// The pin directory, if another user than root and nodelb's owns it or can change it: nodelb can then neither restore
    /// pins nor start again.
    pub fn foreign_directory(&self) -> Option<ForeignDirectory> {
        // The first component of `nodelb/v1/links`.
        let path = self.directory.ancestors().nth(2)?;
        let found = fs::metadata(path).ok()?;
        let (owner, mode) = (found.uid(), found.mode() & 0o7777);
        (!pins::is_own(owner, mode)).then(|| ForeignDirectory { path: path.into(), owner, mode })
    }

    /// The hooks that translate destinations: for each, the ids of its pinned link and of its program, and its name.
    pub(crate) fn translating(&self) -> Vec<(u32, &'static str, u32)> {
        let hooks = HOOKS.iter().filter(|hook| ["connect", "sendmsg"].iter().any(|it| hook.name.starts_with(it)));
        let link = |hook: &Hook| {
            let link = sys::open_link(&self.directory.join(hook.name)).ok().flatten()?;
            let info = LinkInfo::from_fd(link.as_fd()).ok()?;
            Some((info.id, hook.name, info.prog_id))
        };
        hooks.filter_map(link).collect()
    }
}

/// A pin directory that others can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignDirectory {
    pub path: PathBuf,
    pub owner: u32,
    pub mode: u32,
}

/// An open cgroup and its id, which is its inode number.
struct Cgroup {
    directory: File,
    id: u64,
}

impl Cgroup {
    fn open(path: &Path) -> Result<Self, OpenError> {
        let directory = File::open(path).map_err(failed("opening", path))?;
        let id = directory.metadata().map_err(failed("reading", path))?.ino();
        Ok(Self { directory, id })
    }
}

/// Whether this directory contains a pinned link of a hook on this cgroup.
pub(crate) fn has_link_on(pins: &Path, cgroup: &Path) -> bool {
    let Ok(cgroup) = Cgroup::open(cgroup) else { return false };
    HOOKS.iter().any(|hook| is_linked(*hook, pins, &cgroup))
}

/// Whether this directory contains a pinned link of the hook on this cgroup.
fn is_linked(hook: Hook, pins: &Path, cgroup: &Cgroup) -> bool {
    let link = sys::open_link(&pins.join(hook.name)).ok().flatten();
    link.is_some_and(|link| target(link.as_fd()) == Some((cgroup.id, hook.attach_type)))
}

/// The ids of the programs of the links that are pinned in this directory under the names of the hooks.
pub(crate) fn programs_in(pins: &Path) -> Vec<u32> {
    let open = all_hooks().filter_map(|hook| sys::open_link(&pins.join(hook.name)).ok().flatten());
    open.filter_map(|link| LinkInfo::from_fd(link.as_fd()).ok()).map(|info| info.prog_id).collect()
}

/// The hook that the link is attached to, if it is one of nodelb's on this cgroup.
pub(crate) fn hook_on(link: BorrowedFd<'_>, cgroup: &Path) -> Option<&'static str> {
    let cgroup = Cgroup::open(cgroup).ok()?;
    let attached = target(link)?;
    all_hooks().find(|hook| attached == (cgroup.id, hook.attach_type)).map(|hook| hook.name)
}

/// The program that uses a hook of nodelb exclusively, if any: nodelb cannot be attached to that hook.
pub(crate) fn exclusive(cgroup: &Path) -> Option<OpenError> {
    HOOKS.iter().find_map(|hook| exclusive_at(cgroup, *hook))
}

/// A program that is attached to the cgroup exclusively, or to a cgroup above without permitting programs below it.
fn exclusive_at(cgroup: &Path, hook: Hook) -> Option<OpenError> {
    for at in cgroup.ancestors() {
        // The kernel cannot be queried above the root of the hierarchy.
        let directory = File::open(at).ok()?;
        let (flags, programs) = sys::attached(directory.as_fd(), hook.attach_type).ok()?;
        let is_here = at == cgroup;
        let is_shared = flags & libbpf_sys::BPF_F_ALLOW_MULTI != 0;
        let is_replaceable = !is_here && flags & libbpf_sys::BPF_F_ALLOW_OVERRIDE != 0;
        if let Some(&program) = programs.first()
            && !is_shared
            && !is_replaceable
        {
            let name = names().remove(&program);
            return Some(OpenError::Exclusive { hook: hook.name, cgroup: at.into(), is_here, program, name });
        }
    }
    None
}

/// The names of all programs that have one, by id; none without CAP_SYS_ADMIN.
fn names() -> BTreeMap<u32, String> {
    let named = ProgInfoIter::default().map(|info| (info.id, info.name.to_string_lossy().into_owned()));
    named.filter(|(_, name)| !name.is_empty()).collect()
}

/// A hook that takes no further program, if nodelb would need a new link there. `pins`: the directories with its links.
pub(crate) fn full(cgroup: &Path, pins: &[PathBuf]) -> Option<OpenError> {
    let opened = Cgroup::open(cgroup).ok()?;
    let missing = HOOKS.iter().filter(|hook| !pins.iter().any(|pins| is_linked(**hook, pins, &opened)));
    missing.filter_map(|hook| full_at(cgroup, *hook)).next()
}

fn full_at(cgroup: &Path, hook: Hook) -> Option<OpenError> {
    let (_, programs) = sys::attached(File::open(cgroup).ok()?.as_fd(), hook.attach_type).ok()?;
    if programs.len() < sys::MOST_ATTACHED as usize {
        return None;
    }
    let mut names = names();
    let programs = programs.into_iter().map(|id| (id, names.remove(&id))).collect();
    Some(OpenError::Full { hook: hook.name, cgroup: cgroup.into(), programs })
}

fn attach(
    hook: Hook,
    program: BorrowedFd<'_>,
    cgroup: &Cgroup,
    pins: &Pins,
    open_links: &mut Option<OwnedFd>,
) -> io::Result<LinkState> {
    let is_right = |link: BorrowedFd<'_>| target(link) == Some((cgroup.id, hook.attach_type));
    let create = || sys::link_create(program, cgroup.directory.as_fd(), hook.attach_type);
    pinned_link(hook.name, program, pins, open_links, (&is_right, &create))
}

/// Whether a link is attached to the right hook, and how a new one is created there.
type LinkAt<'a> = (&'a dyn Fn(BorrowedFd<'_>) -> bool, &'a dyn Fn() -> io::Result<OwnedFd>);

/// Makes a hook run the program by a link that is pinned under this name and held open.
pub(crate) fn pinned_link(
    name: &str,
    program: BorrowedFd<'_>,
    pins: &Pins,
    open_link: &mut Option<OwnedFd>,
    (is_right, create): LinkAt<'_>,
) -> io::Result<LinkState> {
    let (pinned, was_pinned) = match sys::open_link(&pins.link(name)) {
        Ok(link) => (link, true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => (None, false),
        Err(error) => return Err(error),
    };
    let runs = |link: &OwnedFd| is_right(link.as_fd()) && sys::link_update(link.as_fd(), program).is_ok();
    if let Some(link) = pinned.filter(runs) {
        pins.crash().pass();
        *open_link = Some(link);
        return Ok(LinkState::Updated);
    }
    // A crash may have left a link that is attached under its unfinished name. If it runs this very program, a tcx hook
    // does not take the program a second time.
    let left = || sys::open_link(&pins.link(&format!("{name}{UNFINISHED}"))).ok().flatten();
    let (link, state) = match open_link.take().filter(runs).or_else(|| left().filter(runs)) {
        Some(link) => (link, LinkState::Pinned),
        None => (create()?, if was_pinned { LinkState::Replaced } else { LinkState::Created }),
    };
    // Held open even if it cannot be pinned: it stays attached as long as this process lives.
    let link = open_link.insert(link);
    pins.replace_link(name, |path| sys::pin(link.as_fd(), path))?;
    Ok(state)
}

/// Detaches a pinned link and removes its pin; returns whether there was one.
pub(crate) fn remove_link(path: &Path, crash: &CrashPoint) -> io::Result<bool> {
    let link = match sys::open_link(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        link => link?,
    };
    if let Some(link) = &link {
        // Fails only if the link is detached already, because its device was removed.
        let _ = sys::link_detach(link.as_fd());
        crash.pass();
    }
    pins::clear(path, crash)?;
    Ok(link.is_some())
}

fn fault(hook: Hook, program: BorrowedFd<'_>, cgroup: &Cgroup, at: (&Path, Option<&OwnedFd>)) -> Option<String> {
    let (pin, _) = at;
    pinned_fault(at, program, &|link| match target(link) {
        Some((id, attach_type)) if (id, attach_type) == (cgroup.id, hook.attach_type) => None,
        Some((0, attach_type)) if attach_type == hook.attach_type => {
            Some("its link was detached, or its cgroup was removed".into())
        }
        Some((_, attach_type)) if attach_type == hook.attach_type => {
            Some("its link is attached to another cgroup, or to one that was removed".into())
        }
        _ => Some(not_its_link(pin)),
    })
}

fn not_its_link(pin: &Path) -> String {
    format!("{} is not one of its links", pin.display())
}

/// The fault of a pinned link, if it has one. `open` is the link that this process holds: it counts if the pin is there but
/// this process may not open it, because others have changed who may. `elsewhere` is the fault of a link that is not attached
/// to the hook.
pub(crate) fn pinned_fault(
    (pin, open): (&Path, Option<&OwnedFd>),
    program: BorrowedFd<'_>,
    elsewhere: &dyn Fn(BorrowedFd<'_>) -> Option<String>,
) -> Option<String> {
    let link = match sys::open_link(pin) {
        Ok(Some(link)) => link,
        Ok(None) => return Some(not_its_link(pin)),
        Err(error) => match open.filter(|_| error.kind() == io::ErrorKind::PermissionDenied).map(OwnedFd::try_clone) {
            Some(Ok(link)) => link,
            _ => return Some(format!("its pin {} cannot be opened: {error}", pin.display())),
        },
    };
    link_fault(link.as_fd(), program, elsewhere)
}

/// The fault of a link that should run the program, if it has one.
pub(crate) fn link_fault(
    link: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
    elsewhere: &dyn Fn(BorrowedFd<'_>) -> Option<String>,
) -> Option<String> {
    if let Some(fault) = elsewhere(link) {
        return Some(fault);
    }
    let runs = LinkInfo::from_fd(link).map(|info| info.prog_id);
    let ours = Program::id_from_fd(program);
    match (runs, ours) {
        (Ok(runs), Ok(ours)) if runs == ours => None,
        (Err(error), _) => Some(format!("its link cannot be read: {error}")),
        (_, Err(error)) => Some(format!("its program cannot be read: {error}")),
        _ => Some("it runs a different program".into()),
    }
}

/// The id of the cgroup that the link is attached to, 0 if that was removed, and the hook; `None` if it is not a cgroup
/// link.
fn target(link: BorrowedFd<'_>) -> Option<(u64, bpf_attach_type)> {
    match LinkInfo::from_fd(link).ok()?.info {
        LinkTypeInfo::Cgroup(info) => Some((info.cgroup_id, info.attach_type as bpf_attach_type)),
        _ => None,
    }
}
