//! The task that follows the devices of the node: it tells the owner task which devices lead to other machines, keeps
//! the packet programs attached to them, and decides whether new connections are translated.
//!
//! A device gets its programs after the maps have its addresses: the first packet finds everything that it needs.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::history::Event;
use nodelb_core::model::addr::Addr;
use nodelb_core::model::service::Source;
use nodelb_core::model::uplink::{Translation, Uplink};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::ServiceId;
use nodelb_core::state::kernel_check::EntryKey;
use nodelb_datapath::Attach;
use nodelb_datapath::packets::{ConnectionCount, PacketSettings};
use nodelb_host::clock::until;
use nodelb_host::messages;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use super::abandoned::{self, Abandoned, EndConnections, is_abandoned};
use super::foreign::{UpdatePorts, log_unlisted};
use super::forwarding::ForwardingLog;
use super::hooks::Hooks;
use super::mode::{self, Activity, Before, Decision, Need};
use super::policies::{Follower, PolicyInputs};
use super::proxies::{self, Findings};
use super::read::{read, uplink};
use super::report::{self, DeviceReport, DevicesReport, HookState};
use super::rules::ReadRules;
use super::sweep::CountConnections;
use super::uplinks::{self, Device, Former};
use super::ways::WaysLook;
use crate::config::{Config, Packets};
use crate::node::addresses::Machine;
use crate::node::netlink::{Events, SETTLE_AT_MOST};

const EVERY: Duration = Duration::from_secs(10);

const SEARCH_EVERY: Duration = Duration::from_secs(30);

/// How long a look at the devices waits until the maps have the addresses of a new device, which then gets its programs.
const MAPS_TIMEOUT: Duration = Duration::from_millis(500);

/// The delay before the next look if the maps did not have them in time.
const LATE_RETRY: Duration = Duration::from_secs(1);

pub(crate) type WriteSettings = Arc<dyn Fn(PacketSettings) + Send + Sync>;

pub(crate) struct DeviceInputs {
    pub(crate) config: watch::Receiver<Arc<Config>>,
    /// What the maps contain.
    pub(crate) snapshot: watch::Receiver<Arc<Snapshot>>,
    /// Whether clients outside the node can connect to an address.
    pub(crate) is_served: watch::Receiver<bool>,
    pub(crate) changes: mpsc::Sender<Vec<Change>>,
    pub(crate) settings: WriteSettings,
    /// Tells the programs which ports others use, if they cannot look it up.
    pub(crate) foreign_ports: Option<UpdatePorts>,
    pub(crate) rules: ReadRules,
    /// The other service proxies at the last search that could read everything, and those found since. The first search
    /// was before the capabilities were dropped.
    pub(crate) findings: Findings,
    pub(crate) count: CountConnections,
    pub(crate) end: EndConnections,
    /// The directory with the network settings of the kernel.
    pub(crate) sysctls: PathBuf,
}

/// Starts the task; it ends with `shutdown` and leaves the programs attached. Returns its reports.
pub(crate) fn start(
    (inputs, policies): (DeviceInputs, PolicyInputs),
    attach: Box<dyn Attach>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> watch::Receiver<Arc<DevicesReport>> {
    let (report, reports) = watch::channel(Arc::default());
    let task = Task::new(inputs, policies, attach, report);
    tokio::spawn(until(shutdown, task.run()));
    reports
}

struct Task {
    inputs: DeviceInputs,
    /// The programs at devices; `None` while a blocking call uses them, and for ever if that has panicked.
    hooks: Option<Hooks>,
    /// Whether the last update of foreign ports failed, which was logged.
    has_unlisted: bool,
    report: watch::Sender<Arc<DevicesReport>>,
    events: Option<Events>,
    former: Former,
    looked: Option<Instant>,
    /// The uplinks that were last sent to the owner.
    uplinks: Option<Vec<Uplink>>,
    decision: Option<Decision>,
    /// What the owner knows about new connections.
    translation: Translation,
    /// Whether a search has ever found one: its connections continue when its rules are removed.
    has_seen_proxy: bool,
    searched: Option<Instant>,
    /// Whether there were no connections at the last search, while no new ones could begin.
    is_drained: bool,
    /// Whether an address for clients outside the node makes programs necessary that are not attached now.
    is_idle: bool,
    /// Whether the last read failed, which was logged.
    has_failed: bool,
    happened: Vec<Event>,
    abandoned: Abandoned,
    policies: Follower,
    forwarding: ForwardingLog,
    ways: WaysLook,
}

impl Task {
    fn new(
        inputs: DeviceInputs,
        policies: PolicyInputs,
        attach: Box<dyn Attach>,
        report: watch::Sender<Arc<DevicesReport>>,
    ) -> Self {
        Self {
            hooks: Some(Hooks::new(attach)),
            has_unlisted: false,
            report,
            events: None,
            former: Former::new(),
            looked: None,
            uplinks: None,
            decision: None,
            translation: Translation::default(),
            has_seen_proxy: false,
            searched: inputs.findings.is_complete.then(Instant::now),
            is_drained: false,
            is_idle: false,
            has_failed: false,
            happened: Vec::new(),
            abandoned: Abandoned::new(),
            policies: Follower::new(policies),
            forwarding: ForwardingLog::default(),
            ways: WaysLook::default(),
            inputs,
        }
    }

    /// Runs until the owner has closed the queue.
    async fn run(mut self) {
        loop {
            if self.events.is_none() {
                self.events = Events::open().ok();
            }
            if !self.refresh().await {
                return;
            }
            let pause = match self.uplinks {
                None => LATE_RETRY,
                Some(_) if self.abandoned.is_counting() => abandoned::LOOK_EVERY,
                Some(_) => EVERY,
            };
            let next = Instant::now() + pause;
            tokio::select! {
                event = event(&mut self.events) => self.settle(event).await,
                changed = self.inputs.config.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.inputs.config.mark_changed();
                }
                () = is_served(&mut self.inputs.is_served), if self.is_idle => {}
                () = self.policies.changed() => {}
                () = sleep_until(next) => {}
            }
        }
    }

    /// Waits until events pause, unless this is the first one for a while: a device may be up, and get packets, at any
    /// moment after it has appeared.
    async fn settle(&mut self, event: io::Result<()>) {
        if event.is_ok() && self.looked.is_none_or(|at| at.elapsed() > SETTLE_AT_MOST) {
            return;
        }
        let settled = match (event, &mut self.events) {
            (Ok(()), Some(events)) => events.settle().await,
            (event, _) => event,
        };
        if settled.is_err() {
            // The socket is opened again, and everything is read after that.
            self.events = None;
        }
    }

    /// Reads everything and does what follows from it; returns false if the owner has closed the queue.
    async fn refresh(&mut self) -> bool {
        self.looked = Some(Instant::now());
        let config = self.latest_config();
        let (machine, mut devices) = match read(Arc::clone(&config)).await {
            Ok(read) => read,
            Err(error) => {
                self.fail(&error);
                return true;
            }
        };
        self.has_failed = false;
        uplinks::keep(&mut devices, &mut self.former, &machine);
        let is_cut_off = uplinks::is_cut_off(&devices, &machine);
        self.end_abandoned(&machine).await;
        self.happened.extend(self.policies.follow().await);
        self.search(machine).await;
        let is_outside_served = self.is_any_served();
        let need = self.need(&config.packets);
        let before = self.before();
        let decision = self.decide(&config.packets, before, need);
        if !self.send(&devices).await {
            return false;
        }
        let Some(mut hooks) = self.hooks.take() else { return true };
        let is_on = decision.activity != Activity::Off;
        // Without the addresses in the maps, the programs would take backends on other nodes for local ones.
        let is_late = self.uplinks.is_none();
        let snapshot = Arc::clone(&self.inputs.snapshot.borrow());
        let refused: BTreeMap<u32, String> =
            snapshot.refused_uplinks().map(|(index, error)| (index, error.to_string())).collect();
        let synced = tokio::task::spawn_blocking(move || {
            let (unknown, mut devices): (Vec<_>, Vec<_>) =
                devices.into_iter().partition(|it| refused.contains_key(&it.ifindex));
            let mut errors = if is_late { BTreeMap::new() } else { hooks.sync(&devices, is_on) };
            devices.extend(unknown);
            errors.extend(refused);
            (hooks, devices, errors)
        });
        let Ok((mut hooks, devices, errors)) = synced.await else { return true };
        self.happened.extend(hooks.take_events());
        let missing = report::missing_of(&config.packets.devices, &devices);
        let devices = devices.into_iter().map(|device| device_report(device, &hooks, &errors)).collect();
        let mut report = DevicesReport {
            decision: None,
            is_needed: need != Need::Nothing,
            is_outside_served,
            method: Some(hooks.method()),
            repairs: hooks.repairs(),
            missing,
            devices,
            is_cut_off,
            has_other_proxy: !self.inputs.findings.proxies.is_empty(),
            failure: None,
            ways: Arc::clone(&self.ways.found),
            policies: Arc::clone(&self.policies.current),
        };
        self.hooks = Some(hooks);
        // The programs may follow in a second.
        let decision = if is_late { decision } else { self.conclude(&report, decision, before) };
        let translation = translation(decision.activity, &report.devices);
        report.decision = Some(decision);
        let snapshot = Arc::clone(&self.inputs.snapshot.borrow());
        self.forwarding.look(&self.inputs.sysctls, &snapshot, &report.uplinks());
        self.report.send_replace(Arc::new(report));
        let is_open = self.send_events().await && self.send_translation(translation).await;
        self.look_at_ways(&snapshot).await;
        is_open
    }

    /// Looks at the ways to backends, when nothing waits for the routes of many of them.
    async fn look_at_ways(&mut self, snapshot: &Arc<Snapshot>) {
        let without_programs = self.report.borrow().without_programs();
        self.ways.look(&self.inputs.findings.dropping, without_programs, snapshot).await;
        let found = &self.ways.found;
        self.report.send_if_modified(|report| {
            let is_new = report.ways != *found;
            if is_new {
                Arc::make_mut(report).ways = Arc::clone(found);
            }
            is_new
        });
    }

    /// Sends to the owner what has happened; returns false if it has closed the queue.
    async fn send_events(&mut self) -> bool {
        let events: Vec<Change> =
            std::mem::take(&mut self.happened).into_iter().map(|event| Change::Happened(event.into())).collect();
        events.is_empty() || self.inputs.changes.send(events).await.is_ok()
    }

    /// Sends to the owner whether new connections are translated, if that has changed; returns false if it has closed the
    /// queue.
    async fn send_translation(&mut self, translation: Translation) -> bool {
        let is_new = std::mem::replace(&mut self.translation, translation) != translation;
        !is_new || self.inputs.changes.send(vec![Change::Translation(translation)]).await.is_ok()
    }

    /// The configuration in effect. If it has been reloaded since, also during events of devices, other service proxies
    /// are searched for at once.
    fn latest_config(&mut self) -> Arc<Config> {
        let config = self.inputs.config.borrow_and_update();
        if config.has_changed() {
            self.searched = None;
        }
        Arc::clone(&config)
    }

    /// Logs the first of several failures. The next attempt is made when it is time for it, and not as soon as an address
    /// is served, which may be so already.
    fn fail(&mut self, error: &io::Error) {
        self.is_idle = false;
        if !std::mem::replace(&mut self.has_failed, true) {
            warn!(
                message_id = %messages::NODE_UNKNOWN,
                "cannot read the network devices of this node: {error}; the programs stay at the devices that have \
                 them, and nodelb retries"
            );
        }
    }

    /// Ends the connections that have an address which the node no longer has: their packets, of which each keeps its
    /// connection, get no answer.
    async fn end_abandoned(&mut self, machine: &Machine) {
        if !self.abandoned.look(machine) {
            return;
        }
        let end = Arc::clone(&self.inputs.end);
        let own: BTreeSet<Addr> = machine.addresses.iter().map(|it| it.addr).collect();
        let ended = tokio::task::spawn_blocking(move || end(&|ends| is_abandoned(ends, &own))).await;
        if let Ok(Ok(entries)) = ended
            && entries > 0
        {
            info!(
                message_id = %messages::NODE_ADDRESSES,
                "{} connections to backends on other nodes ended: the node no longer has the address that the backends saw",
                entries.div_ceil(2)
            );
        }
    }

    /// Searches for other service proxies if it is time for that.
    async fn search(&mut self, machine: Machine) {
        if self.searched.is_some_and(|at| at.elapsed() < SEARCH_EVERY) {
            return;
        }
        self.searched = Some(Instant::now());
        self.list_foreign_ports().await;
        let rules = (self.inputs.rules)().await;
        let found = tokio::task::spawn_blocking(move || proxies::find(&machine, rules));
        if let Ok(findings) = found.await {
            self.inputs.findings = findings.after(&self.inputs.findings);
        }
        let is_draining = self.decision.as_ref().is_some_and(|it| it.activity == Activity::Draining);
        let count = Arc::clone(&self.inputs.count);
        self.is_drained = (is_draining || !self.is_any_served()) && has_no_connections(count).await;
    }

    /// Tells the programs which ports others use now. Logs the first of several failures.
    async fn list_foreign_ports(&mut self) {
        let Some(update) = &self.inputs.foreign_ports else { return };
        match update().await {
            Ok(()) => self.has_unlisted = false,
            Err(error) if !std::mem::replace(&mut self.has_unlisted, true) => log_unlisted(&error),
            Err(_) => {}
        }
    }

    /// Whether clients outside the node can connect to any address.
    fn is_any_served(&self) -> bool {
        !self.inputs.snapshot.borrow().realised.outside.is_empty()
    }

    /// What may begin connections that the programs translate. At the devices of pods, every service may.
    fn need(&self, packets: &Packets) -> Need {
        let snapshot = self.inputs.snapshot.borrow();
        let is_of_file = |id: &ServiceId| snapshot.realised.source_of(*id) == Some(Source::Files);
        let has_pods = !packets.pod_devices.is_empty();
        let realised = &snapshot.realised;
        match () {
            () if realised.outside.values().any(|entry| is_of_file(&entry.service)) => Need::Files,
            () if has_pods && realised.services.iter().any(|(id, _)| is_of_file(id)) => Need::Files,
            () if packets.may_have_clients(!realised.outside.is_empty()) => Need::Kubernetes,
            () => Need::Nothing,
        }
    }

    /// What is done for connections from outside the node now.
    fn before(&self) -> Before {
        match self.hooks.as_ref().is_some_and(Hooks::is_any_attached) {
            false => Before::Nothing,
            true if self.is_drained => Before::NoConnections,
            true => Before::Connections,
        }
    }

    /// Decides on the activity and applies the settings of the programs.
    fn decide(&mut self, packets: &Packets, before: Before, need: Need) -> Decision {
        let decision = mode::decide(packets.mode, &self.inputs.findings, before, need);
        self.is_idle = decision.activity == Activity::Off && need == Need::Nothing;
        self.has_seen_proxy |= !self.inputs.findings.proxies.is_empty();
        (self.inputs.settings)(mode::settings(packets, decision.activity, self.has_seen_proxy));
        decision
    }

    /// What the decision amounts to, which is logged and recorded if that is something else than before.
    fn conclude(&mut self, report: &DevicesReport, decision: Decision, before: Before) -> Decision {
        let decision = report.in_effect(decision);
        if self.decision.as_ref() == Some(&decision) {
            return decision;
        }
        let event = decision.event();
        info!(message_id = %messages::PACKETS_ACTIVITY, "{}", event.detail.as_deref().unwrap_or_default());
        // A start has no earlier decision, and usually continues what was before.
        let is_news_of_start = (decision.activity == Activity::Off) != (before == Before::Nothing);
        if self.decision.is_some() || is_news_of_start {
            self.happened.push(event);
        }
        self.decision = Some(decision.clone());
        decision
    }

    /// Sends the uplinks to the owner if they have changed, and waits until the maps have them; returns false if the
    /// owner has closed the queue.
    async fn send(&mut self, devices: &[Device]) -> bool {
        let uplinks: Vec<Uplink> = devices.iter().filter_map(uplink).collect();
        if self.uplinks.as_ref() == Some(&uplinks) {
            return true;
        }
        if self.inputs.changes.send(vec![Change::Uplinks(uplinks.clone())]).await.is_err() {
            return false;
        }
        // Those that the maps do not accept have a problem of their own, and keep the programs from no other device.
        let has_all = |snapshot: &Arc<Snapshot>| {
            let is_there = |it: &Uplink| {
                snapshot.realised.uplinks.get(&it.ifindex) == Some(&it.entry)
                    || snapshot.failures.contains_key(&EntryKey::Uplink(it.ifindex))
            };
            uplinks.iter().all(is_there)
        };
        let is_in_time = timeout(MAPS_TIMEOUT, self.inputs.snapshot.wait_for(has_all)).await.is_ok();
        self.uplinks = is_in_time.then_some(uplinks);
        true
    }
}

fn device_report(device: Device, hooks: &Hooks, errors: &BTreeMap<u32, String>) -> DeviceReport {
    let error = errors.get(&device.ifindex).cloned();
    let ahead = hooks.ahead(device.ifindex).map(str::to_owned);
    let xdp = hooks.xdp(device.ifindex).cloned();
    DeviceReport { is_attached: error.is_none() && hooks.has(device.ifindex), error, ahead, xdp, device }
}

/// What happens to new connections: none is translated if no device accepts the programs.
fn translation(activity: Activity, devices: &[DeviceReport]) -> Translation {
    let has = |state| devices.iter().any(|it| it.state() == state);
    match activity {
        Activity::On if has(HookState::Failed) && !has(HookState::Attached) => Translation::Off,
        Activity::On => Translation::On,
        Activity::Files => Translation::Files,
        Activity::Draining => Translation::Draining,
        Activity::Off => Translation::Off,
    }
}

/// Waits until clients outside the node can connect to an address.
async fn is_served(mark: &mut watch::Receiver<bool>) {
    if mark.wait_for(|is_served| *is_served).await.is_err() {
        // The owner has ended.
        std::future::pending::<()>().await;
    }
}

async fn has_no_connections(count: CountConnections) -> bool {
    let counted = tokio::task::spawn_blocking(move || count()).await;
    matches!(counted, Ok(Ok(count)) if count == ConnectionCount::default())
}

/// Waits for the next event; with no socket, until it is time to open one.
async fn event(events: &mut Option<Events>) -> io::Result<()> {
    match events {
        Some(events) => events.next().await,
        None => {
            sleep(SETTLE_AT_MOST).await;
            Err(io::ErrorKind::NotConnected.into())
        }
    }
}

#[cfg(test)]
#[path = "tests/watch.rs"]
mod tests;
