//! Loads the BPF object, with pinned maps or with new ones. Owns the decisions before loading (sizes, features) and the
//! error message after a failed load; pins nothing, attaches nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ErrorKind, MapHandle, OpenMap, OpenObject, PrintLevel, set_print};
use nodelb_core::datapath::Limits;

use crate::Options;
use crate::attach::HOOKS;
use crate::counters::Counters;
use crate::error::{OpenError, failed, into_io};
use crate::kept::{self, KeptPrograms, LoadedObject, Source};
use crate::layout::ServiceWords;
use crate::maps::{Handles, NAMES};
use crate::outside::OutsideMaps;
use crate::probe::Features;
use crate::skeleton::{self, OpenSockSkel, SockSkelBuilder};
use crate::spec::Spec;

/// The maps that outlive generations, by their names in `bpf/maps.h` and `bpf/socket_maps.h`: per-socket state, and its
/// epoch.
pub(crate) const PERSISTENT: [&str; 6] =
    ["tcp_sockets", "udp_sockets", "tcp_table", "udp_table", "udp_overflow", "frontend_epoch"];

/// The maps that a start gives to the object if they are pinned.
const LASTING: &[&str] = &{
    let ([a, b, c, d, e], [f, g, h, i, j, k]) = (NAMES, PERSISTENT);
    [a, b, c, d, e, f, g, h, i, j, k]
};

/// Whether this machine may reorder loads.
pub(crate) const IS_WEAKLY_ORDERED: bool = !cfg!(any(target_arch = "x86_64", target_arch = "s390x"));

/// Number of lines of the verifier's log that an error contains.
const LOG_LINES: usize = 24;

/// Messages of libbpf or the verifier when memory or file descriptors are short. The error that follows may be a
/// different one: the verifier does not recognise a map without a descriptor.
const SHORT: [&str; 4] = ["-ENOMEM", "-EMFILE", "-ENFILE", "is not pointing to valid bpf_map"];

/// The message of libbpf if a program that the kernel can only run compiled was not: because the compiler is off, or, which
/// may pass, because it has no memory.
const NOT_COMPILED: &str = "-ENOTSUPP";

/// The setting of the BPF compiler: the kernel accepts callbacks of `bpf_loop` only in compiled programs.
const JIT: &str = "/proc/sys/net/core/bpf_jit_enable";

/// An opened object with its sizes set, not loaded yet.
pub(crate) struct Prepared<'o> {
    skeleton: OpenSockSkel<'o>,
    /// Specifications of a generation's maps, in the order of [`crate::maps::NAMES`].
    pub(crate) specs: [Spec; NAMES.len()],
    /// Specifications of the persistent maps, in the order of [`PERSISTENT`].
    pub(crate) lasting_specs: [Spec; PERSISTENT.len()],
    pub(crate) limits: Limits,
    pub(crate) service_words: ServiceWords,
}

/// The maps and programs of a loaded object. They disappear with their descriptors unless they are pinned or attached.
pub(crate) struct Loaded {
    pub(crate) handles: Handles,
    pub(crate) persistent: [MapHandle; PERSISTENT.len()],
    /// The counters; `None` if nothing is counted.
    pub(crate) counters: Option<MapHandle>,
    /// The programs, in the order of [`HOOKS`].
    pub(crate) programs: Vec<OwnedFd>,
    pub(crate) are_taken_over: bool,
}

/// Opens the object and sets everything that must be set before loading.
pub(crate) fn prepare<'o>(
    object: &'o mut MaybeUninit<OpenObject>,
    options: &Options,
    features: Features,
) -> Result<Prepared<'o>, OpenError> {
    let service_words = ServiceWords::of_layout(options.layout);
    let skeleton = skeleton::with_layout(service_words.is_next(), || SockSkelBuilder::default().open(object));
    let mut skeleton = skeleton.map_err(failed("opening", Path::new("sock.bpf.o")))?;
    let rodata = skeleton.maps.rodata_data.as_deref_mut().expect("invariant: the object has constants");
    rodata.nodeport_first = *options.nodeport_range.start();
    rodata.nodeport_last = *options.nodeport_range.end();
    rodata.has_set_retval = features.set_retval.into();
    rodata.protects_nodeports = u8::from(options.protect_nodeports && features.bind_refusal);
    rodata.has_mptcp = features.mptcp.into();
    rodata.weakly_ordered = IS_WEAKLY_ORDERED.into();
    // No namespace has the cookie 0: then NodePorts are not answered on loopback.
    rodata.node_netns = features.netns.unwrap_or(0);
    let shards = if options.count_connections { Counters::shards(options.limits.services) } else { 0 };
    if shards > 0 {
        rodata.counted_services = options.limits.services;
        rodata.counter_shards_mask = u32::try_from(shards - 1).unwrap_or(0);
    }
    set_sizes(&mut skeleton, options.limits, shards).map_err(failed("sizing", Path::new("sock.bpf.o")))?;
    let spec = |name: &str| {
        let map = skeleton.open_object().maps().find(|map| map.name() == name);
        spec(&map.expect("invariant: the object has its maps"))
    };
    let (specs, lasting_specs) = (NAMES.map(spec), PERSISTENT.map(spec));
    Ok(Prepared { skeleton, specs, lasting_specs, limits: options.limits, service_words })
}

fn set_sizes(skeleton: &mut OpenSockSkel<'_>, limits: Limits, shards: usize) -> libbpf_rs::Result<()> {
    let counters = u32::try_from(shards).unwrap_or(0).saturating_mul(limits.services);
    if counters == 0 {
        skeleton.maps.counters.set_autocreate(false)?;
    } else {
        skeleton.maps.counters.set_max_entries(counters)?;
    }
    skeleton.maps.frontends.set_max_entries(limits.frontends)?;
    skeleton.maps.services.set_max_entries(limits.services)?;
    skeleton.maps.slots.set_max_entries(limits.slots)?;
    skeleton.maps.affinity.set_max_entries(limits.affinity)
}

fn spec(map: &OpenMap<'_>) -> Spec {
    Spec {
        map_type: map.map_type().into(),
        key_size: map.key_size(),
        value_size: map.value_size(),
        flags: map.map_flags(),
        max_entries: map.max_entries(),
    }
}

impl Prepared<'_> {
    /// Loads the object with these maps; creates those that are not given, except those of clients. Programs that an
    /// earlier start has loaded with the same maps are taken over.
    pub(crate) fn load<'m>(
        mut self,
        used: impl Iterator<Item = (&'static str, &'m MapHandle)>,
        outside: &OutsideMaps,
        persistent: &'m [Option<MapHandle>; PERSISTENT.len()],
        kept: &KeptPrograms,
    ) -> Result<Loaded, OpenError> {
        let failed_to_use = || failed("using the pinned maps with", Path::new("sock.bpf.o"));
        let persistent = PERSISTENT.into_iter().zip(persistent).filter_map(|(name, map)| Some((name, map.as_ref()?)));
        let given: BTreeMap<_, _> = used.chain(persistent).collect();
        self.reuse(&given).map_err(failed_to_use())?;
        self.use_ranges(outside).map_err(failed_to_use())?;
        let of_clients = |name: &str| {
            let [outside, ranges] = outside.of_clients()?;
            Some(if name == "outside" { outside } else { ranges })
        };
        let find = |name: &str| given.get(name).copied().or_else(|| of_clients(name));
        let is_next = self.service_words.is_next();
        let bytes = skeleton::with_layout(is_next, skeleton::object);
        let source = Source { name: "sock", bytes, lasting: LASTING };
        let counts = self.skeleton.maps.rodata_data.as_deref().is_some_and(|constants| constants.counted_services > 0);
        let (loaded, log) = listening(|| kept::load(Some(kept), &source, find, self.skeleton));
        let loaded = loaded.map_err(|error| refusal(error, &log))?;
        take(&loaded, counts).map_err(failed("taking the descriptors of", Path::new("sock.bpf.o")))
    }

    /// Without the maps, the programs do not look up which clients an address admits.
    fn use_ranges(&mut self, outside: &OutsideMaps) -> libbpf_rs::Result<()> {
        let maps = &mut self.skeleton.maps;
        match outside.of_clients() {
            Some([outside, ranges]) => {
                maps.outside.reuse_fd(outside.as_fd())?;
                maps.source_ranges.reuse_fd(ranges.as_fd())?;
                let rodata = maps.rodata_data.as_deref_mut().expect("invariant: the object has constants");
                rodata.has_ranges = 1;
            }
            None => {
                maps.outside.set_autocreate(false)?;
                maps.source_ranges.set_autocreate(false)?;
            }
        }
        Ok(())
    }

    fn reuse(&mut self, given: &BTreeMap<&str, &MapHandle>) -> libbpf_rs::Result<()> {
        for mut map in self.skeleton.open_object_mut().maps_mut() {
            let handle = map.name().to_str().and_then(|name| given.get(name));
            handle.map_or(Ok(()), |handle| map.reuse_fd(handle.as_fd()))?;
        }
        Ok(())
    }
}

fn take(loaded: &LoadedObject, is_counting: bool) -> io::Result<Loaded> {
    let handle = |name: &str| loaded.map(name);
    let [frontends, services, slots, node_addrs, affinity] = NAMES.map(handle);
    let [tcp_sockets, udp_sockets, tcp_table, udp_table, udp_overflow, epoch] = PERSISTENT.map(handle);
    Ok(Loaded {
        counters: is_counting.then(|| handle("counters")).transpose()?,
        handles: Handles([frontends?, services?, slots?, node_addrs?, affinity?], OutsideMaps::default()),
        persistent: [tcp_sockets?, udp_sockets?, tcp_table?, udp_table?, udp_overflow?, epoch?],
        programs: HOOKS.iter().map(|hook| loaded.program(hook.name)).collect::<io::Result<_>>()?,
        are_taken_over: loaded.is_taken_over,
    })
}

pub(crate) fn refusal(error: libbpf_rs::Error, log: &str) -> OpenError {
    let may_pass = may_pass(error.kind()) || SHORT.iter().any(|sign| log.contains(sign));
    if let Some(map) = without_memory(log) {
        return OpenError::NoMap { map: map.into(), reason: into_io(error).to_string() };
    }
    let error = into_io(error);
    match error.raw_os_error() {
        Some(libc::EPERM) if log.trim().is_empty() || !log.contains("processed") => {
            OpenError::Forbidden { reason: error.to_string() }
        }
        Some(libc::ENOSYS) => OpenError::Lacks { what: "bpf(2)".into() },
        _ if (!may_pass || log.contains(NOT_COMPILED)) && is_jit_off(fs::read_to_string(JIT).ok().as_deref(), log) => {
            OpenError::NoJit { reason: error.to_string() }
        }
        _ => {
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
            OpenError::Refused { reason: error.to_string(), log: tail, may_pass }
        }
    }
}

/// The name of the map that libbpf could not create, if its message says that the map is too large.
fn without_memory(log: &str) -> Option<&str> {
    let failed = log.lines().filter_map(|line| line.strip_prefix("libbpf: map '"));
    let mut failed = failed.filter_map(|line| line.split_once("': failed to create: "));
    failed.find(|(_, error)| error.starts_with("-ENOMEM") || error.starts_with("-E2BIG")).map(|(name, _)| name)
}

/// Whether programs are not compiled: according to the kernel's setting, which exists only in the first network
/// namespace, or to the verifier's message about callbacks.
fn is_jit_off(setting: Option<&str>, log: &str) -> bool {
    setting.is_some_and(|setting| setting.trim() == "0") || log.contains("non-JITed")
}

/// Whether a later attempt may succeed. The verifier always gives the same result; unknown errors may pass.
fn may_pass(kind: ErrorKind) -> bool {
    use ErrorKind::{InvalidData, InvalidInput, NotFound, PermissionDenied, TooBig, Unsupported};
    !matches!(kind, InvalidData | InvalidInput | NotFound | PermissionDenied | TooBig | Unsupported)
}

/// Returns the output of libbpf while `work` runs. libbpf has one print callback per process, so only one load may run
/// at a time.
pub(crate) fn listening<T>(work: impl FnOnce() -> T) -> (T, String) {
    static OUTPUT: Mutex<String> = Mutex::new(String::new());
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before = set_print(Some((PrintLevel::Info, |_, text| {
        OUTPUT.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
    })));
    let result = work();
    set_print(before);
    (result, std::mem::take(&mut OUTPUT.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// Loads programs. The error ends with the last line that libbpf printed, which is that of the verifier if it refused.
pub(crate) fn explained<T>(load: impl FnOnce() -> libbpf_rs::Result<T>) -> io::Result<T> {
    let (loaded, log) = listening(load);
    loaded.map_err(|error| {
        let last = log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        io::Error::other(format!("{error}: {}", last.trim()))
    })
}

#[cfg(test)]
#[path = "tests/load.rs"]
mod tests;
