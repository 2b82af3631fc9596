use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use nodelb_core::config::{EngineConfig, PacketsConfig};
use nodelb_core::datapath::Limits;
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::ipsec::Policies;
use nodelb_core::model::moment::Moment;
use nodelb_core::state::entries::{OutsideEntry, Realised, ServiceEntry};
use nodelb_core::state::owner::OwnerTag;
use nodelb_datapath::packets::{ConnectionEnds, Draining, UnknownPackets};
use nodelb_host::clock::Clock;
use nodelb_sources::OwnerHandle;

use super::super::hooks::tests::Fake;
use super::super::proxies::ServiceProxy;
use super::*;
use crate::node::addresses::{Address, Interface};
use crate::reconcile::{Marker, Marks};
use crate::sockets::nf_tables::ForeignRules;

/// A task with a kernel in memory, on the devices of this machine.
struct Rig {
    fake: Fake,
    config: watch::Sender<Arc<Config>>,
    changes: mpsc::Receiver<Vec<Change>>,
    settings: Arc<Mutex<Vec<PacketSettings>>>,
    reports: watch::Receiver<Arc<DevicesReport>>,
}

fn config(keys: &str) -> Arc<Config> {
    Arc::new(Config::parse(&format!("[packets]\n{keys}\n")).unwrap())
}

/// The snapshots of an owner, its queue, and copies of what it has received.
type Ends = ((OwnerHandle, Marks), mpsc::Receiver<Vec<Change>>);

/// Starts an owner with maps in memory, which contain the uplinks only if packets are on.
fn owner(is_on: bool) -> Ends {
    let packets = PacketsConfig { is_on, ..PacketsConfig::default() };
    let mut engine = Engine::new(EngineConfig { packets, ..EngineConfig::default() }, Realised::default());
    let limits = Limits { frontends: 10, services: 10, slots: 10, affinity: 1, outside: 10, source_ranges: 10 };
    let mut datapath = MemoryDatapath::new(limits);
    let (snapshot_in, snapshot) = watch::channel(Arc::new(engine.snapshot(Moment(0))));
    let (changes_in, mut received) = mpsc::channel::<Vec<Change>>(10);
    let (copies, changes) = mpsc::channel(10);
    let marker = Marker::default();
    let marks = marker.marks();
    let handle = OwnerHandle { changes: changes_in, snapshot, clock: Clock::start() };
    tokio::spawn(async move {
        while let Some(batch) = received.recv().await {
            batch.iter().cloned().for_each(|change| engine.change(change));
            engine.reconcile(&mut datapath, Moment(0));
            snapshot_in.send_replace(Arc::new(engine.snapshot(Moment(0))));
            marker.publish(&snapshot_in.borrow());
            // A test that does not read the changes has dropped the receiver, or has room for them.
            drop(copies.try_send(batch));
        }
    });
    ((handle, marks), changes)
}

fn start_with(keys: &str, has_table: bool) -> Rig {
    start_with_owner(owner(true), keys, has_table)
}

fn start_with_owner(owner: Ends, keys: &str, has_table: bool) -> Rig {
    let rules: ReadRules =
        Arc::new(move || Box::pin(async move { Ok(ForeignRules { has_table, ..ForeignRules::default() }) }));
    let (inputs, rig) = prepare(owner, keys, rules);
    Rig { reports: start((inputs, no_policies()), Box::new(rig.fake.clone()), std::future::pending()), ..rig }
}

fn prepare(((owner, marks), changes): Ends, keys: &str, rules: ReadRules) -> (DeviceInputs, Rig) {
    let (config_in, config) = watch::channel(config(keys));
    let (fake, settings) = (Fake::default(), Arc::new(Mutex::new(Vec::new())));
    let written = Arc::clone(&settings);
    let inputs = DeviceInputs {
        config,
        snapshot: owner.snapshot,
        is_served: marks.is_outside_served,
        changes: owner.changes,
        settings: Arc::new(move |settings| written.lock().unwrap().push(settings)),
        foreign_ports: None,
        rules,
        findings: Findings::default(),
        count: Arc::new(|| Ok(ConnectionCount::default())),
        end: Arc::new(|_| Ok(0)),
        sysctls: PathBuf::new(),
    };
    (inputs, Rig { fake, config: config_in, changes, settings, reports: watch::channel(Arc::default()).1 })
}

fn no_policies() -> PolicyInputs {
    PolicyInputs {
        read: Arc::new(|| Box::pin(async { Ok(Policies::default()) })),
        write: Arc::new(|_| Ok(())),
        end: Arc::new(|_| Ok(0)),
        events: None,
        current: Some(Policies::default()),
    }
}

/// A connection to a backend on another node that sees this address of the node.
fn connection_of(own: &str) -> ConnectionEnds {
    let at = |text: &str| text.parse().unwrap();
    ConnectionEnds {
        client: at("203.0.113.9:40000/TCP"),
        frontend: at("198.51.100.9:80/TCP"),
        past_stack: Some((at(&format!("{own}:10000/TCP")), at("203.0.113.8:80/TCP"))),
    }
}

/// Makes an address one for clients outside the node.
fn serve(snapshot: &mut Snapshot) {
    let address = "198.51.100.9:80/TCP".parse().unwrap();
    snapshot.realised.outside.insert(address, OutsideEntry { service: ServiceId(1), local: false, has_ranges: false });
}

impl Rig {
    async fn activity(&mut self, expected: Activity) {
        let is_there = |report: &Arc<DevicesReport>| {
            report.decision.as_ref().is_some_and(|decision| decision.activity == expected)
        };
        timeout(Duration::from_secs(20), self.reports.wait_for(is_there)).await.unwrap().unwrap();
    }

    fn last_settings(&self) -> PacketSettings {
        *self.settings.lock().unwrap().last().unwrap()
    }
}

/// This machine has a loopback device, which never leads to other machines.
#[tokio::test]
async fn the_owner_gets_the_uplinks_before_they_have_programs() {
    let mut rig = start_with("mode = \"on\"\nunknown = \"reset\"", true);
    let change = timeout(Duration::from_secs(20), rig.changes.recv()).await.unwrap().unwrap();
    let Change::Uplinks(uplinks) = &change[0] else { panic!("{change:?}") };
    assert!(uplinks.iter().all(|uplink| &*uplink.name != "lo"));
    rig.activity(Activity::On).await;
    let attached: Vec<u32> = rig.fake.kernel().devices.keys().copied().collect();
    assert_eq!(attached, uplinks.iter().map(|uplink| uplink.ifindex).collect::<Vec<_>>());
    let settings = rig.last_settings();
    assert!(settings.unknown == UnknownPackets::Reset && settings.answers && settings.draining == Draining::None);
    let report = Arc::clone(&rig.reports.borrow());
    assert!(report.devices.iter().any(|device| &*device.device.name == "lo" && !device.is_attached));
}

#[tokio::test]
async fn the_mode_follows_the_configuration() {
    let mut rig = start_with("mode = \"on\"", false);
    rig.activity(Activity::On).await;
    rig.config.send_replace(config("mode = \"drain\"\nanswer = false\nsnat = \"always\"\npod-devices = [\"tap*\"]"));
    rig.activity(Activity::Draining).await;
    let settings = rig.last_settings();
    assert!(settings.draining == Draining::All && !settings.answers && settings.always_masquerades);
    assert_eq!(rig.fake.kernel().devices.is_empty(), rig.reports.borrow().devices.iter().all(|it| !it.is_attached));
}

#[tokio::test]
async fn the_owner_knows_whether_new_connections_are_translated() {
    let mut rig = start_with("mode = \"on\"", false);
    rig.activity(Activity::On).await;
    let (mut seen, mut events) = (Vec::new(), Vec::new());
    for (mode, expected) in [("drain", Translation::Draining), ("off", Translation::Off), ("on", Translation::On)] {
        rig.config.send_replace(config(&format!("mode = {mode:?}")));
        while seen.last() != Some(&expected) {
            let batch = timeout(Duration::from_secs(20), rig.changes.recv()).await.unwrap().unwrap();
            seen.extend(batch.into_iter().filter_map(|change| match change {
                Change::Translation(translation) => Some(translation),
                Change::Happened(event) => {
                    events.push(event.detail.unwrap().split(": ").next().unwrap().to_owned());
                    None
                }
                _ => None,
            }));
        }
    }
    assert_eq!(seen, [Translation::Draining, Translation::Off, Translation::On], "each once");
    let texts = [
        "connections from outside the node are translated",
        "existing connections from outside the node are translated, and no new ones",
        "connections from outside the node are not translated",
        "connections from outside the node are translated",
    ];
    assert_eq!(events, texts, "the history has each, too");
}

/// Found as: the history said twice at the first start that connections are translated.
#[tokio::test]
async fn the_first_address_for_clients_outside_is_no_change_of_the_translation() {
    let (mut inputs, rig) =
        prepare(owner(true), "mode = \"on\"", Arc::new(|| Box::pin(async { Ok(Default::default()) })));
    let (snapshot_in, snapshot) = watch::channel(Arc::new(Snapshot::default()));
    inputs.snapshot = snapshot;
    let mut task = Task::new(inputs, no_policies(), Box::new(rig.fake.clone()), watch::channel(Arc::default()).0);
    let mut events = || {
        let config = task.latest_config();
        let need = task.need(&config.packets);
        let before = task.before();
        let decision = task.decide(&config.packets, before, need);
        task.conclude(&DevicesReport::default(), decision, before);
        task.happened.len()
    };
    assert_eq!(events(), 1);
    snapshot_in.send_modify(|snapshot| serve(Arc::make_mut(snapshot)));
    assert_eq!(events(), 1, "the same is true as before");
}

/// Every command said that clients outside are served.
#[tokio::test]
async fn no_device_with_the_programs_is_no_translation() {
    // No device of this machine, as each name has a letter.
    let except = ('a'..='z').map(|letter| format!("*{letter}*")).collect::<Vec<_>>();
    let keys = format!("mode = \"on\"\ndevices = [\"0\"]\nexcept = {except:?}");
    let (mut inputs, mut rig) = prepare(owner(true), &keys, Arc::new(|| Box::pin(async { Ok(Default::default()) })));
    let mut snapshot = Snapshot::default();
    serve(&mut snapshot);
    let (_snapshot_in, snapshot) = watch::channel(Arc::new(snapshot));
    inputs.snapshot = snapshot;
    let (report, reports) = watch::channel(Arc::default());
    let mut task = Task::new(inputs, no_policies(), Box::new(rig.fake.clone()), report);
    task.translation = Translation::On;
    assert!(task.refresh().await);
    let decision = reports.borrow().decision.clone().unwrap();
    assert_eq!(decision.activity, Activity::Off);
    assert!(decision.reason.starts_with("no device leads to other machines; the node has no device 0"), "{decision:?}");
    let is_off = |batch: &[Change]| batch.iter().any(|it| matches!(it, Change::Translation(Translation::Off)));
    while !is_off(&timeout(Duration::from_secs(20), rig.changes.recv()).await.unwrap().unwrap()) {}
}

#[tokio::test]
async fn another_service_proxy_keeps_nodelb_off() {
    let mut rig = start_with("mode = \"auto\"", true);
    rig.activity(Activity::Off).await;
    assert!(rig.fake.kernel().devices.is_empty());
    let reason = rig.reports.borrow().decision.clone().unwrap().reason;
    assert!(reason.contains("the nftables table kube-proxy"), "{reason}");
}

#[tokio::test]
async fn a_service_of_a_file_keeps_its_programs_next_to_another_proxy() {
    let decide = |source: Source| {
        let rules: ReadRules = Arc::new(|| Box::pin(async { Ok(ForeignRules::default()) }));
        let (mut inputs, rig) = prepare(owner(true), "mode = \"auto\"", rules);
        inputs.findings =
            Findings { proxies: [ServiceProxy::NftablesTable].into(), is_complete: true, ..Findings::default() };
        let mut snapshot = Snapshot::default();
        serve(&mut snapshot);
        let tag = Some(OwnerTag { source, service: 1, port: 1 });
        snapshot.realised.services.insert(ServiceId(1), Arc::new(ServiceEntry { tag, ..ServiceEntry::default() }));
        inputs.snapshot = watch::channel(Arc::new(snapshot)).1;
        let mut task = Task::new(inputs, no_policies(), Box::new(rig.fake.clone()), watch::channel(Arc::default()).0);
        let config = task.latest_config();
        let need = task.need(&config.packets);
        (task.decide(&config.packets, Before::NoConnections, need).activity, rig.last_settings().draining)
    };
    assert_eq!(decide(Source::Files), (Activity::Files, Draining::Kubernetes));
    assert_eq!(decide(Source::Kubernetes).0, Activity::Off);
}

/// A reload is seen first by a look at the devices, after an event of a device.
#[tokio::test]
async fn a_reload_during_events_of_devices_searches_for_other_proxies() {
    let searches = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&searches);
    let rules: ReadRules = Arc::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(ForeignRules { has_table: true, ..ForeignRules::default() }) })
    });
    let (inputs, rig) = prepare(owner(true), "mode = \"auto\"", rules);
    let mut task = Task::new(inputs, no_policies(), Box::new(rig.fake.clone()), watch::channel(Arc::default()).0);
    for _ in 0..2 {
        assert!(task.refresh().await);
    }
    assert_eq!(searches.load(Ordering::Relaxed), 1, "the second look comes soon");
    rig.config.send_replace(config("mode = \"auto\""));
    assert!(task.refresh().await);
    assert_eq!(searches.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn without_its_addresses_in_the_maps_a_device_gets_no_programs() {
    let mut rig = start_with_owner(owner(false), "mode = \"on\"", false);
    let change = timeout(Duration::from_secs(20), rig.changes.recv()).await.unwrap().unwrap();
    let Change::Uplinks(uplinks) = &change[0] else { panic!("{change:?}") };
    if uplinks.is_empty() {
        return rig.activity(Activity::On).await;
    }
    // The task tries again.
    timeout(Duration::from_secs(20), rig.changes.recv()).await.unwrap().unwrap();
    assert!(rig.fake.kernel().devices.is_empty());
}

/// Looks at a machine with these addresses of one interface every second; the numbers of addresses when connections ended.
struct Looks {
    task: Task,
    asked: Arc<Mutex<Vec<usize>>>,
}

impl Looks {
    fn new() -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let (mut inputs, rig) = prepare(owner(true), "", Arc::new(|| Box::pin(async { Ok(Default::default()) })));
        inputs.end = Arc::new(move |is_over| {
            let ends = |own: &&str| is_over(&connection_of(own));
            log.lock().unwrap().push(OWN.iter().filter(|own| !ends(own)).count());
            Ok(2)
        });
        Self { task: Task::new(inputs, no_policies(), Box::new(rig.fake), watch::channel(Arc::default()).0), asked }
    }

    async fn look(&mut self, addresses: &[&str], is_up: bool, times: usize) -> Vec<usize> {
        let address = |text: &&str| Address {
            interface: 1,
            addr: text.parse().unwrap(),
            is_global: true,
            is_in_doubt: false,
            is_passing: false,
            is_secondary: false,
        };
        let addresses = addresses.iter().map(address).collect();
        let interfaces = [(1, Interface { is_up, ..Interface::default() })].into();
        let machine = Machine { addresses, interfaces, ..Machine::default() };
        for _ in 0..times {
            self.task.end_abandoned(&machine).await;
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        self.asked.lock().unwrap().clone()
    }
}

const OWN: [&str; 2] = ["203.0.113.1", "203.0.113.2"];

#[tokio::test(start_paused = true)]
async fn connections_outlive_an_address_that_is_soon_set_again() {
    let mut looks = Looks::new();
    assert_eq!(looks.look(&OWN, true, 6).await, [2], "those of an earlier nodelb");
    looks.look(&OWN[1..], true, 5).await;
    assert_eq!(looks.look(&OWN, true, 6).await, [2, 2]);
    assert_eq!(looks.look(&OWN[1..], true, 60).await, [2, 2, 1], "once");
}

#[tokio::test(start_paused = true)]
async fn connections_outlive_a_pause_of_the_daemon_and_a_link_that_is_down() {
    let mut looks = Looks::new();
    looks.look(&OWN, true, 6).await;
    looks.look(&OWN[1..], true, 1).await;
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(looks.look(&OWN[1..], true, 1).await, [2], "one late look");
    assert_eq!(looks.look(&OWN[1..], false, 60).await, [2]);
    assert_eq!(looks.look(&OWN, true, 6).await, [2, 2]);
    let mut at_start = Looks::new();
    assert_eq!(at_start.look(&OWN[1..], false, 60).await, [0; 0]);
    assert_eq!(at_start.look(&OWN, true, 6).await, [2]);
}

/// A walk over all connections for each pod that comes or goes would cost more than it ends.
#[tokio::test(start_paused = true)]
async fn addresses_of_links_are_not_waited_for() {
    let mut looks = Looks::new();
    looks.look(&OWN, true, 6).await;
    assert_eq!(looks.look(&[OWN[0], OWN[1], "fe80::1"], true, 6).await, [2]);
    assert_eq!(looks.look(&OWN, true, 6).await, [2]);
}
