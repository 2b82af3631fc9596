//! The network devices of the node, as far as packets of clients outside of it pass through them: which devices lead to
//! other machines, and the node's addresses and ports there.

mod abandoned;
pub(crate) mod answers;
pub mod events;
mod failed;
mod foreign;
pub(crate) mod forwarding;
pub mod hooks;
pub mod mode;
pub(crate) mod policies;
mod privileged;
pub mod proxies;
mod read;
pub mod report;
mod rules;
pub mod sweep;
pub mod uplinks;
pub mod watch;
mod ways;

use std::fs;
use std::future::Future;
use std::io;
use std::ops::{ControlFlow, RangeInclusive};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use nodelb_core::change::Change;
use nodelb_core::config::PacketsConfig;
use nodelb_core::history::Event;
use nodelb_core::model::addr::{Family, L4Addr};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::uplink::Uplink;
use nodelb_datapath::packets::{CheckWays, Connection, DIRECT_TTL, DropCount, PacketCounter, PacketCounts};
use nodelb_datapath::{Attach, HookMethod, OpenedPackets, PacketFailure};
use nodelb_host::messages;
use nodelb_host::register::Register;
use nodelb_report::problems::DroppingChain;
use nodelb_sources::OwnerHandle;
use nodelb_sources::checks::Prepare;
use socket2::SockRef;
use tokio::runtime::Handle;
use tokio::sync::watch as channel;
use tracing::warn;

use self::abandoned::EndConnections;
use self::answers::Answering;
use self::events::PacketWatchers;
pub(crate) use self::foreign::foreign_connections;
use self::mode::{Before, Need};
use self::policies::PolicyInputs;
use self::privileged::{ByReaper, PacketReaper};
use self::proxies::Findings;
use self::report::DevicesReport;
use self::sweep::{CountConnections, SweepReport};
use self::watch::DeviceInputs;
use crate::config::{Config, PacketMode, Packets, SnatPorts};
use crate::connections::Connections as ServiceConnections;
use crate::node::netlink;
use crate::reconcile::Marks;
use crate::sockets::reaper::Reaper;
use crate::sockets::xfrm::{self, PolicyEvents};

/// Passes each connection to the function, until that breaks.
pub type ReadConnections = Arc<dyn Fn(&mut dyn FnMut(Connection) -> ControlFlow<()>) -> io::Result<()> + Send + Sync>;

/// Reads what the programs count; `None` if the kernel refuses that.
pub type ReadCounts = Arc<dyn Fn() -> Option<PacketCounts> + Send + Sync>;

/// Reads which packets were dropped, answered or passed on, and why.
pub type ReadDrops = Arc<dyn Fn() -> io::Result<Drops> + Send + Sync>;

/// The packets that were dropped, answered or passed on, by service and reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// The counts of each service, in no order.
    pub counts: Vec<DropCount>,
    pub packets: u64,
    /// Seconds since the counts began.
    pub age: u32,
}

/// What the tasks of this module publish, and what can be read from the kernel.
#[derive(Clone)]
pub struct DeviceOutputs {
    pub devices: channel::Receiver<Arc<DevicesReport>>,
    /// The sweeps; `None` if the kernel cannot list connections.
    pub sweep: Option<channel::Receiver<Arc<SweepReport>>>,
    pub connections: ReadConnections,
    pub counts: ReadCounts,
    pub drops: ReadDrops,
    /// The directory with the network settings of the kernel; empty if they are not to be read.
    pub sysctls: PathBuf,
    /// Those who watch packets; `None` if no program reports any.
    pub watchers: Option<PacketWatchers>,
    /// The connections of clients outside the node to each service; `None` if they are not counted.
    pub service_connections: Option<ServiceConnections>,
}

impl Default for DeviceOutputs {
    /// Nothing is published, and there are no connections.
    fn default() -> Self {
        let (connections, counts): (ReadConnections, ReadCounts) = (Arc::new(|_| Ok(())), Arc::new(|| None));
        Self {
            devices: channel::channel(Arc::default()).1,
            sweep: None,
            connections,
            counts,
            drops: Arc::new(|| Ok(Drops::default())),
            sysctls: PathBuf::new(),
            watchers: None,
            service_connections: None,
        }
    }
}

pub enum PacketPath {
    /// `is_news`: it was on before the start.
    Off {
        is_news: bool,
    },
    Failed(PacketFailure),
    Open(Box<Open>),
}

impl PacketPath {
    /// Makes the configuration what the programs do.
    pub fn adjust(&self, config: &mut PacketsConfig) {
        match self {
            Self::Open(open) => config.direct_return = open.packets.direct_return,
            Self::Failed(failure) => config.is_on &= failure.is_earlier_active,
            Self::Off { .. } => {}
        }
    }

    /// Prepares the sockets of health checks, which go the way of the packets.
    pub fn prepare_checks(&self, register: &Register) -> Prepare {
        let register = Arc::clone(register);
        let ways = match self {
            Self::Open(open) => Some(open.packets.check_ways.clone()),
            Self::Off { .. } | Self::Failed(_) => None,
        };
        Arc::new(move |socket, way| {
            register(socket)?;
            match (&ways, way) {
                (Some(ways), Some(way)) => prepare_way(ways, socket, way),
                _ => Ok(()),
            }
        })
    }
}

/// Maximum size of a segment that fits into a tunnel on every path: 1,280 bytes less two headers of IPv6 and one of TCP.
const TUNNEL_MSS: u32 = 1_280 - 2 * 40 - 20;

fn prepare_way(ways: &CheckWays, socket: BorrowedFd<'_>, (service, forward): (L4Addr, Forward)) -> io::Result<()> {
    ways.set(socket, service, forward)?;
    let socket = SockRef::from(&socket);
    match (forward, service.addr.family()) {
        // Another node of entry that gets it neither sends it on, nor lets another backend answer.
        (Forward::Direct, Family::Ipv4) => socket.set_ttl_v4(DIRECT_TTL),
        (Forward::Direct, Family::Ipv6) => socket.set_unicast_hops_v6(DIRECT_TTL),
        (Forward::Tunnel, _) => socket.set_tcp_mss(TUNNEL_MSS),
        (Forward::Translate, _) => Ok(()),
    }
}

pub struct Open {
    pub packets: OpenedPackets,
    /// Does what takes capabilities that this process has dropped.
    pub reaper: Option<Reaper>,
    /// The other service proxies that were found before the capabilities were dropped.
    pub findings: Findings,
    /// What listens to changes of IPsec's policies since then; `None` if the kernel has none.
    pub policy_events: Option<OwnedFd>,
}

/// Starts the tasks of the packet path, unless it is off. They end with `shutdown`; the programs stay attached.
pub fn start<S: Future<Output = ()> + Send + 'static>(
    path: PacketPath,
    (owner, marks): (&OwnerHandle, &Marks),
    config: &channel::Receiver<Arc<Config>>,
    shutdown: impl Fn() -> S,
) -> Option<DeviceOutputs> {
    // The queue is empty at the start.
    let happened = |event: Event| drop(owner.changes.try_send(vec![Change::Happened(event.into())]));
    match path {
        PacketPath::Off { is_news } => {
            let mode = config.borrow().packets.mode;
            let decision = mode::decide(mode, &Findings::default(), Before::Nothing, Need::Nothing);
            is_news.then(|| happened(decision.event()));
            None
        }
        PacketPath::Failed(failure) => {
            let devices = failed::start(failure, config.clone(), shutdown());
            devices.borrow().decision.iter().for_each(|decision| happened(decision.event()));
            Some(DeviceOutputs { devices, ..DeviceOutputs::default() })
        }
        PacketPath::Open(open) => Some(start_tasks(*open, (owner, marks), config, shutdown)),
    }
}

fn start_tasks<S: Future<Output = ()> + Send + 'static>(
    Open { packets, reaper, findings, policy_events }: Open,
    (owner, marks): (&OwnerHandle, &Marks),
    config: &channel::Receiver<Arc<Config>>,
    shutdown: impl Fn() -> S,
) -> DeviceOutputs {
    report_start(&packets, &config.borrow().packets);
    let OpenedPackets {
        mut hooks,
        settings,
        policies: policy_writer,
        followed,
        sweep,
        counter,
        foreign_ports,
        events,
        connections,
        max_connections,
        ..
    } = packets;
    let connections = Arc::new(connections);
    let count: CountConnections = {
        let connections = Arc::clone(&connections);
        Arc::new(move || connections.count())
    };
    let reaper = reaper.map(PacketReaper::new);
    if let (HookMethod::Clsact, Some(reaper)) = (hooks.method(), &reaper) {
        hooks.change_filters_by(Box::new(ByReaper { reaper: reaper.clone(), runtime: Handle::current() }));
    }
    let end: EndConnections = {
        let connections = Arc::clone(&connections);
        Arc::new(move |is_over| connections.end(is_over))
    };
    let policies = PolicyInputs {
        read: policies::reader(reaper.clone()),
        write: Arc::new(move |rules| policy_writer.set(rules)),
        end: Arc::clone(&end),
        events: policy_events.and_then(|socket| PolicyEvents::new(socket).ok()),
        current: followed,
    };
    let is_served = &marks.is_outside_served;
    let inputs = DeviceInputs {
        config: config.clone(),
        snapshot: owner.snapshot.clone(),
        is_served: is_served.clone(),
        changes: owner.changes.clone(),
        settings: Arc::new(move |values| settings.set(values)),
        foreign_ports: foreign_ports.map(|ports| foreign::updater(ports, reaper.clone())),
        rules: rules::reader(reaper),
        findings,
        count: Arc::clone(&count),
        end: Arc::clone(&end),
        sysctls: PathBuf::from(SYSCTLS),
    };
    let sweep = sweep.inspect_err(|error| {
        warn!(
            message_id = %messages::SWEEP_FAILED,
            "connections of clients outside the node that have ended cannot be deleted: {error}; they occupy room until \
             the map is full"
        );
    });
    let answering = Answering::new(owner.snapshot.clone(), owner.changes.clone(), owner.clock);
    let sweep = sweep.ok().map(|it| (sweep::in_kernel(it), max_connections));
    DeviceOutputs {
        devices: watch::start((inputs, policies), Box::new(hooks), shutdown()),
        sweep: sweep.map(|it| sweep::start(it, (count, answering), is_served.clone(), config.clone(), shutdown())),
        connections: Arc::new(move |see| connections.read(see)),
        drops: {
            let counter = Arc::clone(&counter);
            Arc::new(move || drops(&counter))
        },
        sysctls: PathBuf::from(SYSCTLS),
        watchers: Some(PacketWatchers::new(events)),
        service_connections: counter.has_connections().then(|| service_connections(Arc::clone(&counter))),
        counts: Arc::new(move || counter.read().ok()),
    }
}

/// Logs what the start could not do.
fn report_start(opened: &OpenedPackets, packets: &Packets) {
    for fault in &opened.faults {
        warn!(
            message_id = %messages::PACKETS_FAILED,
            "the packet programs are not completely started: {fault}; connections from outside the node may fail. nodelb \
             retries at devices every 10 seconds, and everything else at its next start"
        );
    }
    let (kept, limit) = (opened.max_connections, packets.max_connections);
    if kept > limit {
        warn!(
            message_id = %messages::CONNECTIONS_LIMIT_KEPT,
            "more than packets.max-connections ({limit}) connections of clients outside the node exist: the limit remains \
             {kept}. Restart nodelb when there are fewer"
        );
    }
}

/// Searches for other service proxies, if the mode depends on them: before capabilities are dropped, so that the first
/// packets already find the right settings.
pub fn find_proxies(packets: &Packets) -> Findings {
    if packets.mode != PacketMode::Auto {
        return Findings::default();
    }
    match netlink::read() {
        Ok(machine) => proxies::find(&machine, rules::read_here()),
        Err(error) => Findings { error: Some(error.to_string()), ..Findings::default() },
    }
}

/// The uplinks that a daemon with this configuration would have now.
pub(crate) fn uplinks_now(config: &Config) -> io::Result<Vec<Uplink>> {
    let (_, devices) = read::read_now(config)?;
    Ok(devices.iter().filter_map(read::uplink).collect())
}

/// The chains that drop forwarded packets, which takes CAP_NET_ADMIN.
pub(crate) fn dropping_chains() -> io::Result<Vec<DroppingChain>> {
    Ok(rules::read_here()?.dropping)
}

/// Listens to changes of IPsec's policies, before capabilities are dropped and policies are read.
pub fn listen_to_policies(packets: &Packets) -> Option<OwnedFd> {
    let listening = if packets.is_on() { xfrm::listen() } else { Ok(None) };
    listening.unwrap_or_else(|error| {
        policies::log_unread(&error);
        None
    })
}

fn drops(counter: &PacketCounter) -> io::Result<Drops> {
    let all = counter.read()?;
    let packets = all.dropped.iter().chain(&all.passed).sum();
    Ok(Drops { counts: counter.drops()?, packets, age: counter.age() })
}

fn service_connections(counter: Arc<PacketCounter>) -> ServiceConnections {
    ServiceConnections { read: Arc::new(move |id| counter.connections(id).unwrap_or_default()), ledger: Arc::default() }
}

/// The network settings of the kernel.
pub(crate) const SYSCTLS: &str = "/proc/sys/net";

/// The ports that the kernel selects one from for a socket that names none.
const LOCAL_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

fn local_ports() -> io::Result<RangeInclusive<u16>> {
    let text = fs::read_to_string(LOCAL_PORTS)?;
    parse_local_ports(&text).ok_or_else(|| io::Error::other(format!("{LOCAL_PORTS} has no port range: {text:?}")))
}

/// The range that the kernel has at its start.
const USUAL_LOCAL_PORTS: RangeInclusive<u16> = 32_768..=60_999;

/// The ports of this node for connections to backends on other nodes, with a warning if processes may get them, too.
pub fn source_ports(
    ports: SnatPorts,
    nodeports: RangeInclusive<u16>,
) -> Result<(RangeInclusive<u16>, Option<String>), String> {
    let (local, unknown) = match local_ports() {
        Ok(local) => (local, None),
        Err(error) => (USUAL_LOCAL_PORTS, Some(format!("net.ipv4.ip_local_port_range cannot be read: {error}"))),
    };
    let range = ports.resolve(&local, &nodeports).map_err(|error| format!("packets.snat-ports: {error}"))?;
    let overlap = SnatPorts::overlap(&range, &local);
    Ok((range, unknown.or(overlap)))
}

fn parse_local_ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.trim().split_once(char::is_whitespace)?;
    Some(first.parse().ok()?..=last.trim().parse().ok()?)
}

#[cfg(test)]
#[path = "tests/devices.rs"]
mod tests;
