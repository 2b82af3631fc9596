//! The kernel datapath as the daemon runs it: opened, stripped of privilege, and tried out every few seconds.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nodelb_core::addr::Protocol;
use nodelb_datapath::{
    Counters, KernelDatapath, KernelReader, OpenError, Options, Origin, OwnSockets, StartReport, Tally, drop_privileges,
};
use tracing::{info, warn};

use crate::admin::{Check, Connections, ReadClients};
use crate::bound::ephemeral;
use crate::canary;
use crate::config::{Config, Disconnect};
use crate::connections::{Count, ReadCount};
use crate::drift::{self, Reports};
use crate::exit::{Code, Failure};
use crate::log::messages;
use crate::moves::{Means, ReadFlows, STUCK};
use crate::reaper::Reaper;

/// The environment variable that makes the daemon kill itself after so many operations on maps, pins and links: how
/// the tests try out a crash at every step.
const CRASH_AFTER: &str = "NODELB_CRASH_AFTER";

/// Opens the kernel datapath and gives up the capabilities that took.
pub(super) fn open(config: &Config) -> Result<KernelDatapath, Failure> {
    let options = Options {
        pin_directory: config.datapath.pin_directory.clone(),
        cgroup: config.datapath.cgroup().map(ToOwned::to_owned),
        limits: config.datapath.limits(),
        nodeport_range: config.datapath.nodeport_range.into(),
        protect_nodeports: config.datapath.protect_nodeports,
        count_connections: config.datapath.count_connections,
        crash_after: crash_after()?,
    };
    let (datapath, report) = KernelDatapath::open(&options).map_err(refused)?;
    tell(config, &report);
    let kept = drop_privileges(&datapath).map_err(|error| Failure::new(Code::Permission, error))?;
    match kept.capabilities.as_slice() {
        [] => info!(message_id = %messages::ATTACHED, "every capability is dropped"),
        kept => info!(
            message_id = %messages::ATTACHED,
            "every capability is dropped but {}, which this kernel asks for", kept.join(", ")
        ),
    }
    Ok(datapath)
}

/// What start found, and what will not work.
fn tell(config: &Config, report: &StartReport) {
    let maps = match report.origin {
        Origin::Created => "new maps",
        Origin::Reused => "the maps of before",
        Origin::Rebuilt { .. } => "maps of other sizes with the content of before",
    };
    info!(
        message_id = %messages::ATTACHED,
        generation = report.generation, cgroup = %report.cgroup.display(), "attached, with {maps}"
    );
    for what in &report.corrupt {
        warn!(
            message_id = %messages::MAP_ENTRY_CORRUPT,
            "left out of the new maps, since nodelb cannot have written it: {what}"
        );
    }
    for lack in report.features.missing() {
        warn!(message_id = %messages::KERNEL_LACKS, "{lack}");
    }
    if config.datapath.protect_nodeports {
        let unprotected = report.features.nodeports_unprotected().map(ToOwned::to_owned);
        if let Some(text) = unprotected.or_else(|| ephemeral::overlap(&config.datapath.nodeport_range.into())) {
            warn!(message_id = %messages::NODEPORTS_UNPROTECTED, "{text}");
        }
    }
    if let (Err(reason), true) = (&report.flows, config.datapath.disconnect != Disconnect::None) {
        warn!(
            message_id = %messages::SOCKETS_STAY,
            "the kernel cannot tell which sockets are connected to which backend ({reason}; it takes Linux 5.12 with \
             CONFIG_DEBUG_INFO_BTF): {STUCK}"
        );
    }
}

/// Starts the process that ends sockets, if any are to be. To be called before capabilities are dropped.
pub(super) fn start_reaper(config: &Config) -> Option<Reaper> {
    if config.datapath.disconnect == Disconnect::None {
        return None;
    }
    Reaper::start(config.datapath.cgroup())
        .inspect_err(|error| {
            warn!(
                message_id = %messages::SOCKETS_STAY,
                "the reaper cannot be started ({error}): {STUCK}"
            );
        })
        .ok()
}

/// What it takes to end sockets; `None`, and why in the journal, if something is missing.
pub(super) fn means(datapath: &KernelDatapath, reaper: Option<Reaper>) -> Option<Means> {
    let reaper = reaper?;
    let flows = datapath.flows()?;
    // Without capabilities by now.
    if let Err(error) = flows.udp(&mut |_| ()) {
        warn!(
            message_id = %messages::SOCKETS_STAY,
            "the kernel does not tell which sockets are connected to which backend ({error}): {STUCK}"
        );
        return None;
    }
    let read: ReadFlows = Arc::new(move |protocol, see| match protocol {
        Protocol::Tcp => flows.tcp(see),
        Protocol::Udp | Protocol::Sctp => flows.udp(see),
    });
    Some(Means { flows: read, reaper })
}

/// What an operator has to change decides how the daemon ends.
pub(crate) fn refused(error: OpenError) -> Failure {
    let code = match error {
        OpenError::TooSmall { .. } => Code::Config,
        OpenError::Busy { .. } => Code::Unavailable,
        _ => Code::Permission,
    };
    Failure::new(code, error)
}

/// How many operations the daemon survives, if a test says so.
pub(crate) fn crash_after() -> Result<Option<u64>, Failure> {
    let Some(value) = std::env::var_os(CRASH_AFTER) else { return Ok(None) };
    let number = value.to_str().and_then(|text| text.parse().ok());
    let refused = || Failure::message(Code::Config, format!("{CRASH_AFTER}={}: not a number", value.display()));
    number.map(Some).ok_or_else(refused)
}

/// What was counted, and the series made of it.
pub(super) fn connections(counters: Arc<Counters>) -> Connections {
    let read: ReadCount = Arc::new(move |id| {
        let Tally { translated, refused } = counters.read(id);
        Count { translated, refused }
    });
    Connections { read, ledger: Arc::default() }
}

/// How long a number of clients is good for: to count them is to look at each, of millions perhaps.
const COUNT_CLIENTS_EVERY: Duration = Duration::from_secs(30);

/// Counts the clients, not more often than that.
pub(super) fn clients(reader: KernelReader) -> ReadClients {
    let counted = Mutex::new(Counted::default());
    Arc::new(move || {
        let mut counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.number(Instant::now(), || reader.clients().ok())
    })
}

/// What was counted last, and when.
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

/// Links that are gone are put back; saying so once is the loop's business.
pub(super) fn probe_links(datapath: &mut KernelDatapath, drift: &Reports) -> Check {
    match datapath.ensure_attached() {
        Ok(faults) if faults.is_empty() => Check::passed("links", "every program is attached"),
        Ok(faults) => {
            drift::count(drift, drift::LINK, faults.len() as u64);
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            warn!(
                message_id = %messages::LINKS_REPAIRED,
                "links were not as they should be and are attached again: {}", faults.join("; ")
            );
            Check::passed("links", "every program is attached again")
        }
        Err(error) => Check::failed("links", error.to_string()),
    }
}

pub(super) fn probe_canary(own: &OwnSockets) -> Check {
    match canary::check(|socket| own.register(socket)) {
        Ok(alive) if alive.notes.is_empty() => Check::passed("canary", "the hooks are in effect"),
        Ok(alive) => Check::passed("canary", format!("the hooks are in effect; {}", alive.notes.join("; "))),
        Err(error) => Check::failed("canary", error.to_string()),
    }
}

#[cfg(test)]
mod tests;
