//! The state of the daemon for the golden files: equal each time.

use nodelb_report::time::{Clocks, Time};
use std::ops::ControlFlow;
use std::sync::Arc;

use nodelb_core::datapath::Count;
use nodelb_core::history::{Event, History, Kernel, Stamp, What};
use nodelb_core::model::addr::{Family, L4Addr, Protocol};
use nodelb_core::model::cause::Cause;
use nodelb_core::model::forward::Forward;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{Origin, PortKey, ServiceName, Source};
use nodelb_core::model::uplink::UplinkEntry;
use nodelb_core::source_report::{SourceReport, SourceState};
use nodelb_core::state::entries::ServiceId;
use nodelb_core::state::kernel_check::Content as MapContent;
use nodelb_datapath::HookMethod;
use nodelb_datapath::packets::{Connection, ConnectionState, DropCount, PacketVerdict};
use nodelb_sources::dns::{DnsReport, NameReport, NameState};
use nodelb_sources::files::FileReports;
use tokio::sync::watch;

use crate::admin::fixture::{always, kubernetes, owner, unsynced};
use crate::admin::state::AdminState;
use crate::admin::tables::tests::apiservers::report;
use crate::connections::Connections;
use crate::datapath::fake::FakeDatapath;
use crate::devices::mode::{Activity, Decision};
use crate::devices::report::{DeviceReport, DevicesReport};
use crate::devices::uplinks::{Device, Reason, Role};
use crate::devices::{DeviceOutputs, Drops};
use crate::reconcile;
use crate::recorder;
use crate::status::{Check, Health};
use crate::world::{self, World};
use nodelb_core::model::named::{DnsName, Question, RecordType};

/// The time of every answer, in seconds since 1970.
pub(super) const UNIX: u64 = 1_795_000_000;

/// The state of a daemon with this number of services, which translates packets of clients outside the node, too.
pub(super) fn state(services: u32) -> AdminState {
    let world = World::new(services);
    let snapshot = world.engine.snapshot(world.now);
    let realised = snapshot.realised.clone();
    let content = move || Ok(MapContent { state: realised.clone(), ..MapContent::default() });
    let now = Clocks { moment: world.now, time: Time::from_seconds(UNIX) };
    let health = Health { heartbeat: world.now, checks: vec![Check::passed("links", "10 links")] };
    AdminState {
        owner: reconcile::OwnerOutputs { health: always(health), ..owner(always(snapshot)) },
        datapath: Arc::new(FakeDatapath {
            content: Box::new(content),
            limits: world::LIMITS,
            connections: Some(counts(7)),
            ..FakeDatapath::default()
        }),
        kubernetes: Some(kubernetes(report())),
        recorder: recorder::RecorderOutputs { history: watch::channel(Arc::new(history())).1, ..unsynced().recorder },
        files: always(FileReports::from_iter([source()])),
        dns: always(names(services)),
        packets: Some(packets(services)),
        clock: Arc::new(move || now),
        ..unsynced()
    }
}

fn source() -> SourceReport {
    SourceReport {
        source: Source::Files,
        path: "/etc/nodelb/services.d/shop.toml".into(),
        state: SourceState::LastGood,
        services: 3,
        slices: 3,
        content: Some(0xa1b2_c3d4_e5f6_0718),
        problems: vec!["/etc/nodelb/services.d/shop.toml:3: service shop/web: unknown key `backend`".into()],
        since: UNIX - 90,
        kind: None,
        notices: Vec::new(),
        last_received: None,
    }
}

fn history() -> History {
    let mut history = History::default();
    let key = PortKey {
        service: "production/service-00001".parse().unwrap(),
        port: "http".into(),
        protocol: Protocol::Tcp,
        family: Family::Ipv4,
    };
    let origin = Origin {
        object: "EndpointSlice production/service-00001-x7k2p".into(),
        resource_version: "15".into(),
        writer: "kube-controller-manager".into(),
        ..Origin::default()
    };
    let address = |text: &str| -> L4Addr { text.parse().unwrap() };
    let event =
        Event::for_port(&Arc::new(key), Some(Source::Kubernetes), What::Changed, Cause { origin, is_removed: false });
    let added = (1..=7).map(|number| address(&format!("10.1.0.{number}:8080"))).collect();
    let event =
        Event { added, removed: [address("10.1.1.1:8080")].into_iter().collect(), kernel: Kernel::Done, ..event };
    history.add(Event::for_daemon(What::Started, "nodelb 0.2.0"), Stamp { at: (UNIX - 600) * 1_000, to_kernel: 0 });
    history.add(event, Stamp { at: (UNIX - 60) * 1_000, to_kernel: 350 });
    history
}

/// The connections of each service.
fn counts(each: u64) -> Connections {
    let read = move |ServiceId(id): ServiceId| {
        let translated = u64::from(id % 100) * each * 10;
        Count { translated, refused: if id == 2 { 30 } else { 0 } }
    };
    Connections { read: Arc::new(read), ledger: Arc::default() }
}

/// One question for each service: all but two are answered.
fn names(services: u32) -> DnsReport {
    let name = |number: u32| {
        let (state, problem) = match number {
            1 => (NameState::Held, Some("192.0.2.53:53 answers SERVFAIL")),
            2 => (NameState::Empty, Some("192.0.2.53:53 says that there is no such name")),
            _ => (NameState::Ok, None),
        };
        NameReport {
            question: Question {
                name: DnsName::of_labels(&format!("service-{number:05}.production.example.org")).unwrap(),
                record: RecordType::A,
            },
            state,
            records: if number == 2 { 0 } else { 3 },
            server: Some("192.0.2.53:53".into()),
            ttl: Some(300),
            due: Some(Moment(400_000)),
            since: Moment(60_000),
            services: vec![ServiceName::new("production", &format!("service-{number:05}"))],
            problem: problem.map(Into::into),
        }
    };
    DnsReport { names: (0..services).map(name).collect(), ..DnsReport::default() }
}

/// The packet path, with a connection to each service.
fn packets(services: u32) -> DeviceOutputs {
    let drops = [
        (None, "fragment", PacketVerdict::Passed, 3),
        (Some(2), "no-backend", PacketVerdict::Rst, 40),
        (Some(5), "no-route", PacketVerdict::Dropped, 2),
    ];
    let count = |(id, reason, verdict, packets): (Option<u32>, _, _, _)| DropCount {
        service: id.map(ServiceId),
        reason,
        verdict,
        packets,
        first: 60,
        last: 3,
    };
    let drops = Drops { counts: drops.into_iter().map(count).collect(), packets: 45, age: 3_600 };
    DeviceOutputs {
        devices: always(devices()),
        connections: Arc::new(move |see| {
            let all: ControlFlow<()> = (0..services).try_for_each(|number| see(connection(number)));
            let (ControlFlow::Continue(()) | ControlFlow::Break(())) = all;
            Ok(())
        }),
        drops: Arc::new(move || Ok(drops.clone())),
        service_connections: Some(counts(1)),
        ..DeviceOutputs::default()
    }
}

fn connection(number: u32) -> Connection {
    let [_, _, high, low] = number.to_be_bytes();
    Connection {
        client: format!("203.0.113.{}:{}", number % 250 + 1, 40_000 + number / 250).parse().unwrap(),
        frontend: format!("10.96.{}.{}:80", number / 250, number % 250 + 1).parse().unwrap(),
        backend: format!("10.244.{high}.{low}:8080").parse().unwrap(),
        source: number.is_multiple_of(2).then(|| "192.0.2.7:10000".parse().unwrap()),
        service: ServiceId(number + 1),
        ifindex: 2,
        is_redirected: number.is_multiple_of(3),
        forward: Forward::Translate,
        state: ConnectionState::Established,
        idle: 3,
        age: 60,
        bytes: 1_234,
    }
}

fn devices() -> DevicesReport {
    let device = |ifindex, name: &str, v4: &str, role| Device {
        ifindex,
        name: name.into(),
        kind: "physical".into(),
        xdp: nodelb_datapath::XdpFit::Fits,
        entry: UplinkEntry { v4: v4.parse().ok(), mtu: 1500, l2_length: 14, ..UplinkEntry::default() },
        sources: v4.parse().into_iter().collect(),
        kept: None,
        role,
    };
    let report = |device: Device| DeviceReport {
        is_attached: device.role == Role::Uplink,
        device,
        error: None,
        ahead: None,
        xdp: None,
    };
    DevicesReport {
        ways: Arc::default(),
        policies: Arc::default(),
        failure: None,
        is_cut_off: false,
        has_other_proxy: false,
        decision: Some(Decision {
            activity: Activity::On,
            reason: "packets.mode is \"on\", and no other service proxy was found".into(),
        }),
        is_needed: true,
        is_outside_served: true,
        missing: Vec::new(),
        method: Some(HookMethod::Tcx),
        repairs: 0,
        devices: vec![
            report(device(2, "eth0", "192.0.2.7", Role::Uplink)),
            report(device(3, "eth1", "", Role::Unused(Reason::Down))),
        ],
    }
}
