//! Runs the steps of a scenario on a simulated host with a simulated services directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nodelb_core::change::Change;
use nodelb_core::engine::AddressConflict;
use nodelb_core::history::Event;
use nodelb_core::holds::{Emptied, Release};
use nodelb_core::model::addr::{Addr, Family, L4Addr};
use nodelb_core::model::health_check::Quarantine;
use nodelb_core::model::node::{NodeFacts, NodeObject, NodePortAddress};
use nodelb_core::model::service::{Service, ServiceName, Slice, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{MapOp, MapState, ServiceId, Slot};
use nodelb_core::table::health_check_ports::Claimants;
use nodelb_core::trace::{Verdict, taken_nodeports, trace};
use nodelb_programs::sockets::refuses_bind;
use nodelb_report::explain::history::select;
use nodelb_report::explain::reports;
use nodelb_report::filter::Filter;
use nodelb_report::output::table::Style;
use nodelb_report::rows::{Rendered, listed};
use nodelb_report::time::Clocks;
use nodelb_sources::files::merge::{Merged, merge};
use nodelb_sources::files::{FileContent, parse};

use crate::environment::{Client, Environment, Outcome};
use crate::memory_maps;
use crate::model::{Host, Maps};
use crate::outside_model::{Machine, Met, OutsideModel};
use crate::script::Script;
use crate::settings::{Settings, list, pairs};
use crate::status::status;

/// A file of the services directory: its last valid content, and its current problems.
#[derive(Default)]
pub(crate) struct File {
    pub(crate) content: Option<Arc<FileContent>>,
    pub(crate) problems: Vec<String>,
}

/// See the module.
pub(crate) struct Runner<W: Environment> {
    environment: W,
    host: Host<W::Maps>,
    settings: Settings,
    files: BTreeMap<PathBuf, File>,
    merged: Merged,
    node: NodeFacts,
    apiservers: BTreeSet<(Addr, u16)>,
    /// The unhealthy backends, which the daemon keeps over a restart.
    unhealthy: BTreeMap<ServiceName, Quarantine>,
    /// The `incomplete` of the last `Synced`; `None` before the first.
    synced: Option<Option<Arc<str>>>,
    /// The clients outside the node.
    outside: OutsideModel,
    /// Names of released ids, for operations that delete them.
    names: BTreeMap<ServiceId, String>,
}

impl<W: Environment> Runner<W> {
    pub(crate) fn new(script: &Script, mut environment: W) -> Result<Self, String> {
        let settings = Settings::of(script)?;
        let maps = environment.maps(settings.limits, &settings.guard)?;
        let outside = OutsideModel::new(environment.uplink(), settings.always_masquerades);
        let mut runner = Self {
            host: settings.host(maps),
            environment,
            settings,
            files: BTreeMap::new(),
            merged: Merged::default(),
            node: NodeFacts { nodeport_addresses: vec![NodePortAddress::Primary], ..NodeFacts::default() },
            apiservers: BTreeSet::new(),
            unhealthy: BTreeMap::new(),
            synced: None,
            outside,
            names: BTreeMap::new(),
        };
        runner.send_uplinks();
        Ok(runner)
    }

    /// Sends the uplink to the engine, if packets are on.
    fn send_uplinks(&mut self) {
        if self.settings.packets.is_on {
            self.host.send([Change::Uplinks(vec![self.outside.uplink()])]);
        }
    }

    /// Runs a step; returns its output if it is a printing one.
    pub(crate) fn run_step(&mut self, step: &str, script: &Script) -> Result<Option<String>, String> {
        let words: Vec<&str> = step.split_whitespace().collect();
        match words[..] {
            // See `Settings`.
            ["exact"] | ["source", _] | ["limits" | "guard" | "packets", ..] => {}
            ["apply", file] => self.apply(file, script.file(file)?),
            ["apply", block, "as", file] => self.apply(file, script.file(block)?),
            ["delete", file] => self.delete(file)?,
            ["sync"] => self.sync(),
            ["node", ref facts @ ..] => self.set_node(facts)?,
            ["node-object", ref facts @ ..] => self.set_node_object(facts)?,
            ["clock", wait] => self.wait(wait)?,
            ["restart"] => self.restart(Host::restart),
            ["reboot"] => self.restart(Host::reboot),
            ["unhealthy", service, backend, ref error @ ..] => {
                self.find(service, backend, Some(&error.join(" ").into()))?;
            }
            ["healthy", service, backend] => self.find(service, backend, None)?,
            ["apiservers", addresses] => self.set_apiservers(addresses)?,
            ["listeners", addresses] => self.set_listeners(addresses)?,
            ["connect", ref to @ .., "from", Machine::OUTSIDE] => {
                return self.connect_from(to, Machine::Outside).map(Some);
            }
            ["connect", ref to @ .., "from", Machine::OTHER_NODE] => {
                return self.connect_from(to, Machine::OtherNode).map(Some);
            }
            ["connect", ref to @ .., "from", Machine::VM] => return self.connect_from(to, Machine::Vm).map(Some),
            ["talk", name, to] => return self.talk(name, to).map(Some),
            ["connect", ref to @ .., "from", client] => return self.connect(to, &[parse_client(client)?]).map(Some),
            ["health-check", at] => return self.health_check(at).map(Some),
            ["connect", ref to @ ..] => return self.connect(to, &[Client::Host, Client::Pod]).map(Some),
            _ => return self.print(&words).map(Some),
        }
        self.remember_names();
        Ok(None)
    }

    fn print(&self, words: &[&str]) -> Result<String, String> {
        let snapshot = self.host.engine.snapshot(self.host.now);
        let all = Filter::default();
        Ok(match *words {
            // Ages depend on the number of attempts. Clocks at 0 have no time before it.
            ["frontends"] => wide(&listed::frontends(Arc::new(snapshot), all, Clocks::default())),
            ["services"] => wide(&listed::services(Arc::new(snapshot), all, Clocks::default())),
            ["backends"] => wide(&listed::backends(Arc::new(snapshot), all, |_| None, Clocks::default())),
            ["maps"] => self.host.text(),
            ["trace", to] => self.trace(to.parse().map_err(|error| format!("{error}"))?),
            ["bind", at] => self.bind(at.parse().map_err(|error| format!("{error}"))?),
            ["ops"] => self.ops(),
            ["sizes"] => format!("{:#?}\n", self.host.engine.sizes()),
            ["problems"] => self.problems(),
            ["status"] => status(snapshot, &self.files),
            ["health-check-nodeports"] => health_check_nodeports(&snapshot),
            ["journal"] => self.journal(),
            ["history"] => self.history(None),
            ["history", service] => self.history(Some(service.parse().map_err(|error| format!("{error}"))?)),
            _ => return Err("no such step; see tests/scenarios/README.md".into()),
        })
    }

    fn apply(&mut self, file: &str, text: &str) {
        let known = self.files.entry(file.into()).or_default();
        match parse(Path::new(file), text.as_bytes()) {
            Ok(content) => *known = File { content: Some(Arc::new(content)), problems: Vec::new() },
            Err(problems) => known.problems = problems.iter().map(ToString::to_string).collect(),
        }
        self.send();
    }

    fn delete(&mut self, file: &str) -> Result<(), String> {
        self.files.remove(Path::new(file)).ok_or_else(|| format!("{file} was not applied"))?;
        self.send();
        Ok(())
    }

    /// Sends the changes of the directory to the engine, as the file source does.
    fn send(&mut self) {
        let contents = self.files.iter().filter_map(|(path, file)| Some((path.clone(), file.content.clone()?)));
        let merged = merge(&contents.collect());
        let source = self.settings.source;
        self.host.send(self.merged.changes_to(&merged).into_iter().map(|change| from_source(source, change)));
        self.merged = merged;
        if self.synced.as_ref().is_some_and(|synced| *synced != self.incomplete()) {
            self.sync();
        } else {
            self.host.settle();
        }
    }

    fn incomplete(&self) -> Option<Arc<str>> {
        let (path, _) = self.files.iter().find(|(_, file)| file.content.is_none())?;
        Some(path.display().to_string().into())
    }

    fn sync(&mut self) {
        let incomplete = self.incomplete();
        self.synced = Some(incomplete.clone());
        self.host.send([Change::Synced { source: self.settings.source, incomplete }]);
        self.host.settle();
    }

    fn set_node(&mut self, words: &[&str]) -> Result<(), String> {
        for (key, value) in pairs(words)? {
            match key {
                "name" => self.node.name = value.into(),
                "zone" => self.node.zone = value.into(),
                "addresses" => {
                    let addresses = list::<Addr>(value)?;
                    let of = |family| addresses.iter().copied().find(|addr| addr.family() == family);
                    self.node.primary = [Family::Ipv4, Family::Ipv6].into_iter().filter_map(of).collect();
                    self.node.addresses = addresses.into_iter().collect();
                }
                "primary" => self.node.primary = list::<Addr>(value)?.into_iter().collect(),
                "nodeport-addresses" => self.node.nodeport_addresses = list(value)?,
                _ => return Err(format!("no fact `{key}`: name, zone, addresses, primary and nodeport-addresses are")),
            }
        }
        self.host.send([Change::Node(self.node.clone())]);
        self.host.settle();
        Ok(())
    }

    /// Sets the Node object. It must be sent again after a `restart`.
    fn set_node_object(&mut self, words: &[&str]) -> Result<(), String> {
        let mut object = Some(NodeObject::default());
        for word in words {
            match (word.split_once('='), &mut object) {
                (None, _) if *word == "none" => object = None,
                (Some(("addresses", value)), Some(object)) => object.addresses = list(value)?.into_iter().collect(),
                (Some(("zone", value)), Some(object)) => object.zone = value.into(),
                _ => return Err(format!("`{word}` is not addresses=..., zone=... or none")),
            }
        }
        self.host.send([Change::NodeObject(object)]);
        self.host.settle();
        Ok(())
    }

    /// Sets the apiservers that the address pool knows.
    fn set_apiservers(&mut self, addresses: &str) -> Result<(), String> {
        self.apiservers = list::<L4Addr>(addresses)?.iter().map(|at| (at.addr, at.port)).collect();
        self.host.send([Change::Apiservers(self.apiservers.clone())]);
        self.host.settle();
        Ok(())
    }

    /// Sets the health of one or several backends: failed with this error, or passed.
    fn find(&mut self, service: &str, backends: &str, error: Option<&Arc<str>>) -> Result<(), String> {
        let name: ServiceName = service.parse().map_err(|error| format!("{error}"))?;
        let failed = self.unhealthy.entry(name.clone()).or_default();
        for backend in list::<L4Addr>(backends)? {
            let key = (backend.addr, backend.port);
            match error {
                Some(error) => failed.insert(key, Arc::clone(error)),
                None => failed.remove(&key),
            };
        }
        let failed = failed.clone();
        self.host.send([Change::Quarantine(name, failed)]);
        self.host.settle();
        Ok(())
    }

    fn send_unhealthy(&mut self) {
        let response = self.unhealthy.iter().map(|(name, failed)| Change::Quarantine(name.clone(), failed.clone()));
        self.host.send(response.collect::<Vec<_>>());
    }

    /// Sets the sockets of the node's processes, and sends the NodePorts among them to the engine.
    fn set_listeners(&mut self, addresses: &str) -> Result<(), String> {
        let held = self.host.held();
        let mut bound: BTreeMap<L4Addr, Arc<str>> = BTreeMap::new();
        for at in list::<L4Addr>(addresses)? {
            let who = || format!("a process has bound {at}").into();
            bound.extend(taken_nodeports(&held, at, false).map(|nodeport| (nodeport, who())));
        }
        self.host.send([Change::Bound(bound)]);
        self.host.settle();
        Ok(())
    }

    fn wait(&mut self, wait: &str) -> Result<(), String> {
        let seconds = wait.strip_prefix('+').and_then(|wait| wait.strip_suffix('s'));
        let seconds: u64 = seconds.and_then(|text| text.parse().ok()).ok_or("a wait is written like +2s")?;
        self.environment.wait(seconds);
        self.host.now = self.host.now.plus(seconds * 1_000);
        self.host.settle();
        Ok(())
    }

    /// Starts a new daemon; the kernel keeps its maps. The daemon knows the node and the
    /// apiservers, but only files that are applied again.
    fn restart(&mut self, how: fn(&mut Host<W::Maps>)) {
        how(&mut self.host);
        self.files.clear();
        self.merged = Merged::default();
        self.synced = None;
        self.host.send([Change::Node(self.node.clone()), Change::Apiservers(self.apiservers.clone())]);
        self.send_unhealthy();
        self.send_uplinks();
        self.host.settle();
    }

    fn remember_names(&mut self) {
        let snapshot = self.host.engine.snapshot(self.host.now);
        let ids = self.host.maps.log.iter().filter_map(|(op, _)| match op {
            MapOp::PutService(id, _) => Some(*id),
            _ => None,
        });
        let named = ids.filter_map(|id| Some((id, snapshot.service_of(id)?)));
        self.names.extend(named);
    }

    fn name(&self, id: ServiceId) -> &str {
        self.names.get(&id).map_or("?", String::as_str)
    }

    /// The kernel's verdict on a connection.
    fn trace(&self, to: L4Addr) -> String {
        let held = self.host.held();
        match trace(&held, &self.settings.guard.nodeport_range, to) {
            Verdict::Forwarded(id, slots) => format!("{to} -> {} -> {}\n", self.name(id), backends(slots)),
            Verdict::Refused(id, errno) => format!("{to} -> {} -> {errno}\n", self.name(id)),
            Verdict::PassedThrough => format!("{to} passes through\n"),
        }
    }

    /// The outcome for clients at each of the addresses.
    fn connect(&mut self, words: &[&str], from: &[Client]) -> Result<String, String> {
        let snapshot = self.host.engine.snapshot(self.host.now);
        let held = self.host.held();
        self.listen(&snapshot, &held)?;
        let mut text = String::new();
        for word in words {
            let to: L4Addr = word.parse().map_err(|error| format!("{error}"))?;
            let [desired, traced] =
                [&snapshot.desired, &held].map(|state| Outcome::by(state, &self.settings.guard, to));
            // Before all sources have synced, the maps keep services that no source has sent yet.
            if self.synced.is_some() && desired != traced {
                return Err(format!("{to}: by what is desired it {desired}, by what the maps hold it {traced}"));
            }
            let met = from
                .iter()
                .map(|&client| Ok((client, self.environment.connect(to, client, &traced.seen_by(client, to))?)));
            _ = writeln!(text, "{to} {}", agreed(&met.collect::<Result<Vec<_>, String>>()?));
        }
        Ok(text)
    }

    /// Makes the backends listen.
    fn listen(&mut self, snapshot: &Snapshot, held: &MapState) -> Result<(), String> {
        let named = reports::backends(snapshot, &Filter::default()).into_iter().map(|backend| backend.address);
        let slots = held.services.values().flat_map(|entry| entry.cluster.iter().chain(&*entry.local));
        self.environment.listen(&named.chain(slots.map(|slot| slot.addr)).collect())
    }

    /// The outcome for a machine outside the node at each of the addresses.
    fn connect_from(&mut self, words: &[&str], machine: Machine) -> Result<String, String> {
        let mut text = String::new();
        for word in words {
            let to: L4Addr = word.parse().map_err(|error| format!("{error}"))?;
            let met = self.connect_outside(to, machine)?;
            _ = writeln!(text, "{to} {met}");
        }
        Ok(text)
    }

    fn connect_outside(&mut self, to: L4Addr, machine: Machine) -> Result<Met, String> {
        let snapshot = self.host.engine.snapshot(self.host.now);
        let held = self.host.held();
        self.listen(&snapshot, &held)?;
        let attempt = self.outside.attempt(to, machine);
        let range = &self.settings.guard.nodeport_range;
        let [desired, traced] = [&snapshot.desired, &held].map(|state| Met::candidates(state, range, &attempt));
        let translated = self.outside.connect(&held, range, self.host.now, &attempt)?;
        if !(translated.fits(&traced) && (translated.fits(&desired) || self.synced.is_none())) {
            return Err(format!(
                "{to}: by what is desired it {desired}, by what the maps hold it {traced}, by the packets it \
                 {translated}"
            ));
        }
        self.environment.connect_outside(&attempt, &translated)
    }

    /// What a client outside the node meets that keeps its connection, or its socket.
    fn talk(&mut self, name: &str, to: &str) -> Result<String, String> {
        let to: L4Addr = to.parse().map_err(|error| format!("{error}"))?;
        let snapshot = self.host.engine.snapshot(self.host.now);
        let held = self.host.held();
        self.listen(&snapshot, &held)?;
        let packet = self.outside.next_packet(name, to);
        let translated = self.outside.say(&held, self.host.now, &packet)?;
        let met = self.environment.talk(name, &packet, &translated)?;
        Ok(format!("{to} {met}\n"))
    }

    /// The result of a bind to the address.
    fn bind(&self, at: L4Addr) -> String {
        let is_refused = refuses_bind(&self.host.held(), &self.settings.guard.nodeport_range, at);
        format!("{at} {}\n", if is_refused { "EADDRINUSE" } else { "can be bound" })
    }

    /// The response to a load balancer at a healthCheckNodePort.
    fn health_check(&mut self, at: &str) -> Result<String, String> {
        let at: L4Addr = at.parse().map_err(|error| format!("{error}"))?;
        let snapshot = self.host.engine.snapshot(self.host.now);
        let facts = &snapshot.facts;
        let asked = facts.health_check_ports.by_port();
        let found = asked.get(&(at.port, at.addr.family())).filter(|_| facts.node().addresses.contains(&at.addr));
        let response = match found {
            Some(Claimants { owner, .. }) => {
                let count = snapshot.local_ready(owner, at.addr.family());
                format!("{}: {owner} has {count} here", if count > 0 { "200 OK" } else { "503 Service Unavailable" })
            }
            None => "nothing listens".into(),
        };
        let met = self.environment.health_check(at, snapshot.clone(), &response)?;
        Ok(format!("{} {met}\n", SocketAddr::new(at.addr.ip(), at.port)))
    }

    /// The operations of the last step.
    fn ops(&self) -> String {
        let line = |(op, _): &(MapOp, bool)| match op {
            MapOp::PutService(id, entry) => format!("put service {} [{}]\n", self.name(*id), backends(&entry.cluster)),
            MapOp::DeleteService(id) => format!("delete service {}\n", self.name(*id)),
            MapOp::PutFrontend(at, entry) => format!("put frontend {at} -> {}\n", self.name(entry.service)),
            MapOp::DeleteFrontend(at) => format!("delete frontend {at}\n"),
            MapOp::PutNodeAddr(addr) => format!("put node address {addr}\n"),
            MapOp::DeleteNodeAddr(addr) => format!("delete node address {addr}\n"),
            MapOp::PutOutside(at, entry) => format!("put outside {at} -> {}\n", self.name(entry.service)),
            MapOp::DeleteOutside(at) => format!("delete outside {at}\n"),
            MapOp::PutSourceRange(id, range) => format!("put range {range} of {}\n", self.name(*id)),
            MapOp::DeleteSourceRange(id, range) => format!("delete range {range} of {}\n", self.name(*id)),
            MapOp::PutUplink(index, _) => format!("put uplink {index}\n"),
            MapOp::DeleteUplink(index) => format!("delete uplink {index}\n"),
        };
        let lines: String = self.host.maps.log.iter().map(line).collect();
        if lines.is_empty() { "none\n".into() } else { lines }
    }

    /// The records of the flight recorder, without times.
    fn history(&self, service: Option<ServiceName>) -> String {
        let filter = Filter { service, ..Filter::default() };
        let records = select(&self.host.history, &filter, &BTreeSet::new());
        let mut text = String::new();
        for record in records {
            let event = &record.event;
            let Event {
                port, what, cause, added, removed, held, refused, frontends, withdrawn, kernel, detail, ..
            } = event;
            let port = port.as_ref().map_or_else(|| "nodelb".into(), ToString::to_string);
            _ = write!(text, "{} {port} {what}", record.sequence);
            let lists = [("added", added), ("removed", removed), ("held", held), ("refused", refused)];
            let lists = lists.into_iter().chain([("frontends", frontends), ("withdrawn", withdrawn)]);
            for (name, list) in lists.filter(|(_, list)| !list.is_empty()) {
                let shown = list.shown.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                _ = write!(text, " {name} {shown}{}", if list.more > 0 { " and more" } else { "" });
            }
            _ = writeln!(text, "; {cause} {kernel:?}{}", detail.iter().map(|it| format!("; {it}")).collect::<String>());
        }
        text
    }

    /// The log messages of the last step.
    fn journal(&self) -> String {
        let mut text = String::new();
        for round in &self.host.rounds {
            for port in &round.held {
                _ = writeln!(text, "{} {}", port.key, port.text);
            }
            for Release { port, reason, .. } in &round.released {
                _ = writeln!(text, "{} released: {reason}", port.key);
            }
            for Emptied { key, cause, .. } in round.emptied.iter().filter(|lost| !lost.is_kept) {
                _ = writeln!(text, "{key} emptied: {cause} left it without backends");
            }
            for AddressConflict { claimant, text: why, .. } in &round.conflicts {
                _ = writeln!(text, "{claimant} waits: {why}");
            }
            for takeover in &round.takeovers {
                _ = writeln!(text, "{} {takeover}", takeover.owner);
            }
        }
        if text.is_empty() { "nothing\n".into() } else { text }
    }

    /// The problems of the files, and the objects that were ignored on purpose.
    fn problems(&self) -> String {
        let mut text = String::new();
        for (path, file) in &self.files {
            let notices = file.content.iter().flat_map(|content| &content.notices);
            for line in file.problems.iter().chain(notices) {
                _ = writeln!(text, "{}: {line}", path.display());
            }
        }
        text
    }

    /// Removes everything. Nothing may leak: no id, no slot, no name.
    pub(crate) fn end(mut self) -> Result<(), String> {
        self.files.clear();
        self.unhealthy.values_mut().for_each(Quarantine::clear);
        self.send_unhealthy();
        self.send();
        self.sync();
        self.host.send([Change::Node(NodeFacts::default()), Change::Uplinks(Vec::new())]);
        let is_settled = self.host.settle();
        let mut empty = self.settings.host(memory_maps::create(self.settings.limits, None));
        empty.send_synced();
        empty.settle();
        let (left, nothing) = (self.host.engine.sizes(), empty.engine.sizes());
        let slots = self.host.maps.maps.slots_used();
        if is_settled && left == nothing && slots == 0 && self.host.text().is_empty() {
            return Ok(());
        }
        Err(format!("at the end not all is given back: {slots} slots, {left:?}, in the maps\n{}", self.host.text()))
    }
}

/// The common outcome, or each one if they differ.
fn agreed(met: &[(Client, String)]) -> String {
    match met {
        [(_, first), others @ ..] if others.iter().all(|(_, other)| other == first) => first.clone(),
        _ => met.iter().map(|(client, text)| format!("{text} from {client}")).collect::<Vec<_>>().join("; "),
    }
}

fn parse_client(text: &str) -> Result<Client, String> {
    match text {
        "host" => Ok(Client::Host),
        "pod" => Ok(Client::Pod),
        _ => Err("a client is `host` or `pod`".into()),
    }
}

/// Each healthCheckNodePort with its service and its number of local addresses.
fn health_check_nodeports(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for ((port, family), Claimants { owner, waiting }) in snapshot.facts.health_check_ports.by_port() {
        let count = snapshot.local_ready(&owner, family);
        _ = writeln!(text, "{port} over {family}: {owner} has {count} here");
        for name in waiting {
            _ = writeln!(text, "{port} over {family}: {name} waits");
        }
    }
    if let Some(why) = snapshot.facts.leaving() {
        _ = writeln!(text, "node: {why}");
    }
    if text.is_empty() { "none\n".into() } else { text }
}

/// The change as the source sends it: for Kubernetes, an object is named by kind and name.
fn from_source(source: Source, change: Change) -> Change {
    if source == Source::Files {
        return change;
    }
    match change {
        Change::UpsertService(mut service) => {
            service.origin.object = format!("Service {}", service.name).into();
            Change::UpsertService(Service { source, ..service })
        }
        Change::UpsertSlice(mut slice) => {
            slice.origin.object = format!("EndpointSlice {}", slice.name).into();
            Change::UpsertSlice(Slice { source, ..slice })
        }
        Change::RemoveService(name, _) => Change::RemoveService(name, source),
        Change::RemoveSlice(name, _) => Change::RemoveSlice(name, source),
        other => other,
    }
}

/// Every column, and complete lists.
fn wide(answer: &impl Rendered) -> String {
    answer.text(&Style { wide: true, ..Style::default() })
}

/// Each backend once, with its number of slots if more than one.
fn backends(slots: &[Slot]) -> String {
    let run = |run: &[Slot]| match run.len() {
        1 => run[0].addr.to_string(),
        len => format!("{}*{len}", run[0].addr),
    };
    slots.chunk_by(|a, b| a.addr == b.addr).map(run).collect::<Vec<_>>().join(", ")
}
