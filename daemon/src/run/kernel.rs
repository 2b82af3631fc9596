//! The kernel datapath in the daemon: opens it, drops the privileges, and tests it every few seconds.

mod repairs;
mod test_switches;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nodelb_cli::exit::{Code, Failure};
use nodelb_core::datapath::{Datapath, Limits};
use nodelb_core::model::addr::Protocol;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::source_range::SourceRange;
use nodelb_core::state::kernel_check::Content;
use nodelb_datapath::features::{Feature, Findings, Optional};
use nodelb_datapath::packets::PacketOptions;
use nodelb_datapath::{
    ForeignDirectory, KernelDatapath, KernelReader, Links, OpenError, Options, Origin, OwnSockets, PacketFailure,
    PrivilegeError, ProgramOrder, SocketProgram, StartReport, drop_privileges,
};
use nodelb_host::cgroup;
use nodelb_host::messages;
use nodelb_host::register::Register;
use nodelb_host::sock_diag;
use nodelb_report::status_report::Kernel;
use tracing::{info, warn};

use self::repairs::repaired;
use self::test_switches::{asks_conntrack, hook_method, layout};
pub(crate) use self::test_switches::{crash_after, under_way};
use crate::config::{Config, Disconnect};
use crate::connections::Connections;
use crate::datapath::DatapathReader;
use crate::devices::mode::{self, Before, Need};
use crate::devices::{self, proxies};
use crate::reconcile::ProbeResult;
use crate::reconcile::canary::{self, CanaryError, Probe};
use crate::sockets::reaper::Reaper;
use crate::sockets::stale::{Handles, ReadFlows, STUCK};
use crate::status::Check;

pub(super) struct Opened {
    pub(super) datapath: KernelDatapath,
    pub(super) findings: Findings,
    /// Why the packet path is not as configured, if so.
    pub(super) packet_failure: Option<PacketFailure>,
    pub(super) has_ended_packets: bool,
}

/// Opens the kernel datapath, on a node with these other service proxies.
pub(super) fn open(config: &Config, proxies: &proxies::Findings) -> Result<Opened, Failure> {
    let (packets, refused_ports) = match packets(config, proxies) {
        Ok(packets) => (packets, None),
        Err(reason) => (None, Some(PacketFailure { reason, is_earlier_active: false })),
    };
    let options = Options {
        pin_directory: config.datapath.pin_directory.clone(),
        cgroup: config.datapath.cgroup().map(ToOwned::to_owned),
        limits: if packets.is_some() { config.limits() } else { config.datapath.limits() },
        nodeport_range: config.datapath.nodeport_range.clone(),
        protect_nodeports: config.datapath.protect_nodeports,
        count_connections: config.datapath.count_connections,
        packets,
        hook_method: hook_method()?,
        layout: layout()?,
        crash_after: crash_after()?,
    };
    check_cgroup(config)?;
    let (datapath, report) = KernelDatapath::open(&options).map_err(refused)?;
    log_start(config, &report);
    let mut findings = report.findings;
    findings.note(Feature::EndSockets, sock_diag::try_destroy().is_ok());
    let has_ended_packets = report.has_ended_packets;
    Ok(Opened { datapath, findings, packet_failure: refused_ports.or(report.packets.err()), has_ended_packets })
}

/// Refuses a cgroup without this process, whose connections show whether the programs work. Under its unit, nodelb can
/// put no process into another cgroup.
fn check_cgroup(config: &Config) -> Result<(), Failure> {
    let Some(cgroup) = config.datapath.cgroup().filter(|cgroup| cgroup::is_outside(cgroup)) else { return Ok(()) };
    let own = cgroup::own().unwrap_or_default();
    let refused = format!(
        "datapath.cgroup: {} does not contain nodelb, which is in {}: nodelb could not find out whether its programs \
         translate connections, because it tests them with its own. Run nodelb in that cgroup (Slice= in a drop-in of \
         nodelb.service, see systemctl edit nodelb), or name a cgroup that contains both, such as the root, which is the \
         default",
        cgroup.display(),
        own.display()
    );
    Err(Failure::message(Code::Config, refused))
}

/// The options of the packet path; `None` if it is off.
fn packets(config: &Config, proxies: &proxies::Findings) -> Result<Option<PacketOptions>, String> {
    let packets = &config.packets;
    if !packets.is_on() {
        return Ok(None);
    }
    let nodeport_range = config.datapath.nodeport_range.clone();
    let (source_ports, overlap) = devices::source_ports(packets.snat_ports.clone(), nodeport_range.clone())?;
    if let Some(overlap) = overlap {
        warn!(message_id = %messages::SNAT_PORTS_OVERLAP, "{overlap}");
    }
    // Programs of an earlier process may be attached.
    let decision = mode::decide(packets.mode, proxies, Before::Connections, Need::Files);
    let settings = mode::settings(packets, decision.activity, !proxies.proxies.is_empty());
    Ok(Some(PacketOptions {
        nodeport_range,
        limits: config.limits(),
        max_connections: packets.max_connections,
        max_handshakes: packets.max_handshakes,
        max_fragments: packets.max_fragments,
        count_connections: config.datapath.count_connections,
        has_pods: !packets.pod_devices.is_empty(),
        direct_return: packets.direct_return,
        tunnel_sources: packets.tunnel_sources.iter().copied().map(SourceRange::from).collect(),
        foreign_connections: (!asks_conntrack()).then(|| devices::foreign_connections(&source_ports)),
        source_ports,
        xdp: packets.xdp.mode(),
        settings,
        policies: devices::policies::policies(),
    }))
}

/// Drops the capabilities that the opening needed. Describes the kernel.
pub(super) fn drop_capabilities(
    config: &Config,
    datapath: &KernelDatapath,
    mut findings: Findings,
) -> Result<Kernel, Failure> {
    let kept = drop_privileges(datapath).map_err(stuck_with_privileges)?;
    match kept.capabilities.as_slice() {
        [] => info!(message_id = %messages::ATTACHED, "dropped all capabilities"),
        kept => info!(
            message_id = %messages::ATTACHED,
            "dropped all capabilities except {}, which this kernel requires", kept.join(", ")
        ),
    }
    findings.note(Feature::NoCapability, kept.capabilities.is_empty());
    Ok(log_findings(config, &findings))
}

/// Logs the available and the missing kernel features, and returns the missing ones. The features for ending sockets are
/// logged where they are tested.
fn log_findings(config: &Config, findings: &Findings) -> Kernel {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let sentence = findings.sentence(&format!("Linux {}", release.trim()));
    info!(message_id = %messages::KERNEL_HAS, "{sentence}");
    for Optional { feature, name, since, without, .. } in findings.missing() {
        let text = format!("this kernel lacks {name} ({since}): {without}");
        match feature {
            Feature::RefuseConnect | Feature::Netns | Feature::NoCapability => {
                warn!(message_id = %messages::KERNEL_LACKS, "{text}");
            }
            Feature::RefuseBind if config.datapath.protect_nodeports => {
                warn!(message_id = %messages::NODEPORTS_UNPROTECTED, "{text}");
            }
            Feature::RefuseBind | Feature::Mptcp | Feature::Flows | Feature::EndSockets | Feature::TcxLinks => {}
        }
    }
    let missing = findings.missing().map(|row| format!("{} ({}): {}", row.name, row.since, row.without));
    Kernel { release: release.trim().to_owned(), missing_features: missing.collect() }
}

/// Logs the results of the start, and what will not work.
fn log_start(config: &Config, report: &StartReport) {
    let maps = text_of(report.origin);
    info!(
        message_id = %messages::ATTACHED,
        generation = report.generation, cgroup = %report.cgroup.display(),
        "BPF programs attached, {maps}; {}", report.programs
    );
    for fault in &report.program_faults {
        warn!(message_id = %messages::ATTACHED, "the kernel verifies programs again that it has verified: {fault}");
    }
    for directory in &report.foreign_pin_directories {
        warn!(
            message_id = %messages::ATTACHED_TWICE,
            "programs pinned in {0} are also attached to {1} and use their own maps; unless another nodelb is meant to \
             run there, run nodelb cleanup --pin-directory {0}",
            directory.display(), report.cgroup.display()
        );
    }
    for what in &report.corrupt {
        warn!(
            message_id = %messages::MAP_ENTRY_CORRUPT,
            "not copied to the new maps, because nodelb cannot have written it: {what}"
        );
    }
    if let (Err(reason), true) = (&report.flows, config.datapath.disconnect != Disconnect::None) {
        warn!(
            message_id = %messages::SOCKETS_NOT_CLOSED,
            "the kernel cannot list the sockets connected to a backend ({reason}; requires Linux 5.12 with \
             CONFIG_DEBUG_INFO_BTF): {STUCK}"
        );
    }
}

/// A description of the maps in use, to follow `attached, with`.
fn text_of(origin: Origin) -> String {
    match origin {
        Origin::Created => "new maps".into(),
        Origin::Reused => "reusing existing maps".into(),
        Origin::Rebuilt { .. } => "maps of new sizes with the previous content".into(),
        Origin::Cleaned => {
            "new maps of the same sizes with the previous content, except entries that nodelb cannot have written"
                .into()
        }
        Origin::Upgraded { from } => format!("new maps with the content of the previous maps of layout {from}"),
    }
}

/// The reaper, if sockets are to be ended: that of this socket, or one that is started now, before the capabilities are
/// dropped.
pub(super) fn reaper(config: &Config, socket: Option<PathBuf>) -> Option<Reaper> {
    if config.datapath.disconnect == Disconnect::None {
        return None;
    }
    if let Some(path) = socket {
        return Some(Reaper::Behind(path));
    }
    Reaper::start()
        .inspect_err(|error| {
            warn!(
                message_id = %messages::SOCKETS_NOT_CLOSED,
                "the reaper cannot be started ({error}): {STUCK}"
            );
        })
        .ok()
}

/// The reaper of the packet path, if that is on: as [`reaper`].
pub(super) fn packet_reaper(config: &Config, socket: Option<PathBuf>) -> Option<Reaper> {
    if !config.packets.is_on() {
        return None;
    }
    let started = || {
        Reaper::start().inspect_err(|error| {
            warn!(
                message_id = %messages::PACKETS_ACTIVITY,
                "the process that looks for kube-proxy's rules cannot be started ({error}): nodelb does \
                 not notice a kube-proxy that starts later, nor which ports it uses; on a kernel without tcx links, devices that appear \
                 later get no programs"
            );
        })
    };
    socket.map(Reaper::Behind).or_else(|| started().ok())
}

/// The handles to end sockets. `None` if any of them is missing; the journal has the reason.
pub(super) fn handles(config: &Config, datapath: &KernelDatapath, reaper: Option<Reaper>) -> Option<Handles> {
    let reaper = reaper?;
    let flows = datapath.flows()?;
    // The capabilities have been dropped by now.
    if let Err(error) = flows.udp(&mut |_| ()) {
        warn!(
            message_id = %messages::SOCKETS_NOT_CLOSED,
            "the kernel does not list the sockets connected to a backend ({error}): {STUCK}"
        );
        return None;
    }
    let read: ReadFlows = Arc::new(move |protocol, see| match protocol {
        Protocol::Tcp => flows.tcp(see),
        Protocol::Udp | Protocol::Sctp => flows.udp(see),
    });
    Some(Handles { flows: read, reaper, cgroup: config.datapath.cgroup().map(ToOwned::to_owned) })
}

/// The failure with its exit code. Some codes mean that an administrator must change something. For errors that may
/// pass, the code makes systemd try again.
pub(crate) fn refused(error: OpenError) -> Failure {
    let code = match error {
        OpenError::TooSmall { .. }
        | OpenError::NewerLayout { .. }
        | OpenError::UnknownLayout { .. }
        | OpenError::WholeBpffs { .. } => Code::Config,
        OpenError::Busy { .. } => Code::Unavailable,
        OpenError::NotPermitted { .. }
        | OpenError::Forbidden { .. }
        | OpenError::NoBpffs { .. }
        | OpenError::NotOwn { .. }
        | OpenError::NoCgroup2
        | OpenError::BadCgroup { .. }
        | OpenError::Lacks { .. }
        | OpenError::Exclusive { .. }
        | OpenError::NoJit { .. }
        | OpenError::NoLookup { .. }
        | OpenError::Refused { may_pass: false, .. } => Code::Permission,
        OpenError::Refused { may_pass: true, .. }
        | OpenError::Full { .. }
        | OpenError::NoMap { .. }
        | OpenError::Failed { .. } => Code::System,
    };
    Failure::new(code, error)
}

/// As [`refused`], for errors in dropping capabilities.
fn stuck_with_privileges(error: PrivilegeError) -> Failure {
    let is_permission = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let code = match &error {
        PrivilegeError::Threads(_) => Code::Internal,
        PrivilegeError::System(why) | PrivilegeError::NoUse(why) if !is_permission(why) => Code::System,
        PrivilegeError::Capabilities(_) | PrivilegeError::System(_) | PrivilegeError::NoUse(_) => Code::Permission,
    };
    Failure::new(code, error)
}

/// Marks sockets as nodelb's own.
pub(super) fn register(datapath: &KernelDatapath) -> Register {
    let own = datapath.own_sockets();
    Arc::new(move |socket| own.register(socket))
}

/// Reads the maps and the links of the hooks.
pub(super) struct Reader {
    limits: Limits,
    maps: KernelReader,
    links: Links,
    order: Option<ProgramOrder>,
    connections: Option<Connections>,
    clients: Mutex<Counted>,
    kernel: Kernel,
}

impl Reader {
    /// A reader of this datapath; `kernel` describes the kernel.
    pub(super) fn new(datapath: &KernelDatapath, kernel: Kernel) -> Self {
        Self {
            limits: datapath.limits(),
            maps: datapath.reader(),
            links: datapath.links(),
            order: datapath.program_order(),
            connections: datapath
                .counters()
                .map(|counters| Connections { read: Arc::new(move |id| counters.read(id)), ledger: Arc::default() }),
            clients: Mutex::default(),
            kernel,
        }
    }
}

impl DatapathReader for Reader {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn content(&self) -> Result<Content, String> {
        self.maps.content().map_err(|error| error.to_string())
    }

    fn link_faults(&self) -> Vec<String> {
        self.links.faults().iter().map(ToString::to_string).collect()
    }

    fn socket_programs(&self) -> Vec<SocketProgram> {
        self.order.as_ref().and_then(|order| order.others().ok()).unwrap_or_default()
    }

    fn foreign_pins(&self) -> Option<String> {
        let ForeignDirectory { path, owner, mode } = self.links.foreign_directory()?;
        let path = path.display();
        Some(format!(
            "the pin directory {path} belongs to uid {owner} and has mode {mode:04o}: nodelb can neither restore pins there \
             nor start again, although its programs stay attached and translate connections; find out what has changed it, \
             and run chown -R 0:0 {path} and chmod 0700 {path}"
        ))
    }

    /// Counts the clients, at most once per [`COUNT_CLIENTS_EVERY`].
    fn clients(&self) -> Option<usize> {
        let mut counted = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        counted.number(Instant::now(), || self.maps.clients().ok())
    }

    fn slots_taken(&self, now: Moment) -> Option<usize> {
        Some(self.maps.slots_taken(now))
    }

    fn connections(&self) -> Option<&Connections> {
        self.connections.as_ref()
    }

    fn kernel(&self) -> Option<&Kernel> {
        Some(&self.kernel)
    }
}

/// How long a count of clients is reused: counting reads each of them, possibly millions.
const COUNT_CLIENTS_EVERY: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct Counted {
    last: Option<(Instant, Option<usize>)>,
}

impl Counted {
    fn number(&mut self, now: Instant, count: impl FnOnce() -> Option<usize>) -> Option<usize> {
        match self.last {
            Some((at, number)) if now.saturating_duration_since(at) < COUNT_CLIENTS_EVERY => number,
            _ => self.last.insert((now, count())).1,
        }
    }
}

/// Restores links that were removed, and tests the hooks. The loop makes sure that a fault is logged once.
pub(super) fn probe(datapath: &mut KernelDatapath) -> ProbeResult {
    let (links, repairs) = match datapath.ensure_attached() {
        Ok(repairs) if repairs.is_empty() => (Check::passed("links", "every program is attached"), repairs),
        Ok(repairs) => (Check::passed("links", "every program is attached again"), repairs),
        Err(error) => (Check::failed("links", error.to_string()), Vec::new()),
    };
    let (repaired_links, repairs) = (repairs.len() as u64, repaired(&repairs));
    let canary = probe_canary(&datapath.own_sockets(), &datapath.links());
    ProbeResult { checks: vec![links, canary], repairs, repaired_links }
}

/// Tests the hooks. `links` finds the pin directories of other attached programs.
fn probe_canary(own: &OwnSockets, links: &Links) -> Check {
    let prepare = |probe, socket: BorrowedFd<'_>| match probe {
        Probe::Ordinary => own.observe(socket),
        Probe::Own => own.register(socket),
    };
    match canary::check(prepare, |socket| own.was_observed(socket)) {
        Ok(notes) => {
            let passed = "connections are translated (self-test passed)".to_owned();
            Check::passed("canary", [vec![passed], notes].concat().join("; "))
        }
        Err(error @ CanaryError::AnotherAnswers { .. }) => {
            Check::failed("canary", format!("{error}. {}", end_others(&links.foreign_pin_directories())))
        }
        Err(error) => Check::failed("canary", error.to_string()),
    }
}

/// How to end the programs of another nodelb, with links that are pinned in these directories.
fn end_others(directories: &[PathBuf]) -> String {
    if directories.is_empty() {
        return "Their links are in no pin directory that nodelb finds; another file system may be mounted over it. nodelb \
             cleanup --hidden, run as root, lists them, and after a confirmation detaches those that no nodelb uses"
            .into();
    }
    let commands = directories.iter().map(|it| format!("nodelb cleanup --pin-directory {}", it.display()));
    let commands: Vec<String> = commands.collect();
    format!("Unless another nodelb is meant to run here, run {}", commands.join(" and "))
}

#[cfg(test)]
#[path = "tests/kernel.rs"]
mod tests;
