use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::Limits;
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::{Addr, Protocol};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort, Source,
};
use nodelb_core::state::entries::{BackendId, MapState};

use super::*;

const LIMITS: Limits = Limits { frontends: 9, services: 9, slots: 30, affinity: 4, outside: 9, source_ranges: 9 };

/// A service with two backends.
fn snapshot() -> Snapshot {
    let config = EngineConfig { sources: [Source::Files].into(), max_services: 8, ..EngineConfig::default() };
    let mut engine = Engine::new(config, MapState::default());
    let addr = |text: &str| -> Addr { text.parse().unwrap() };
    let spec = FrontendSpec { addr: addr("198.51.100.1"), port: 80, kind: FrontendKind::Static };
    let port = ServicePort { name: "".into(), protocol: Protocol::Tcp, frontends: vec![spec] };
    let name = ServiceName::new("shop", "web");
    let service = Service { ports: vec![port], ..Service::new(name.clone(), Source::Files) };
    let backends = ["192.0.2.1", "192.0.2.2"].map(|text| Backend::new(addr(text), 80)).into();
    let ports = vec![SlicePort { name: "".into(), protocol: Protocol::Tcp, backends }];
    let slice = Slice {
        name: SliceName::new("shop", "web"),
        service: name,
        source: Source::Files,
        origin: Origin::default(),
        ports,
        problem: None,
    };
    for change in [Change::UpsertService(service), Change::UpsertSlice(slice)] {
        engine.change(change);
    }
    engine.change(Change::Synced { source: Source::Files, incomplete: None });
    engine.reconcile(&mut MemoryDatapath::new(LIMITS), Moment(0));
    engine.snapshot(Moment(0))
}

/// A connection that was answered up to ten seconds earlier, in the same interval, hid those that waited.
#[tokio::test]
async fn what_a_look_has_found_quiet_counts_apart_from_the_rest() {
    let (changes, _) = mpsc::channel(1);
    let mut answering = Answering::new(watch::channel(Arc::default()).1, changes, Clock::start());
    let now = answering.next().until;
    let interval = |after, until| Interval { after: now - after, until: now - until };
    let found =
        |answered, refused, unanswered| [(ServiceId(1), BackendId(1), Outcomes { answered, refused, unanswered })];
    answering.take(&[], interval(60, 9)).await;
    assert_eq!(answering.next_quiet(), None, "there was no look");
    assert!(answering.look(&found(1, 0, 1), interval(9, 7)) && answering.look(&found(1, 1, 0), interval(9, 7)));
    assert_eq!(answering.next_quiet(), None, "clients waited, or were refused");
    assert!(!answering.look(&found(1, 0, 0), interval(9, 5)) && !answering.look(&[], interval(9, 4)));
    assert!(answering.look(&found(0, 0, 1), interval(9, 2)));
    assert_eq!(
        (answering.next_quiet(), answering.next().after),
        (Some(interval(9, 4)), now - 9),
        "nothing was counted"
    );
    assert_eq!((answering.total(), answering.silent.len()), (Outcomes::default(), 0));
    answering.take(&found(1, 0, 0), interval(9, 4)).await;
    assert_eq!((answering.next_quiet(), answering.next().after), (None, now - 4), "the rest is the next interval");
}

#[tokio::test]
async fn silence_and_its_end_are_events_of_the_service() {
    let snapshot = snapshot();
    let (id, _) = snapshot.owners.get_min().cloned().unwrap();
    let backends: Vec<BackendId> =
        snapshot.realised.services.get(&id).unwrap().cluster.iter().map(|it| it.backend).collect();
    let (changes, mut sent) = mpsc::channel(8);
    let clock = Clock::since_boot();
    let mut answering = Answering::new(watch::channel(Arc::new(snapshot)).1, changes, clock);
    let mut take = async |outcomes: &[(usize, u64, u64)]| {
        let of = |(at, answered, unanswered): &(usize, u64, u64)| {
            (id, backends[*at], Outcomes { answered: *answered, refused: 0, unanswered: *unanswered })
        };
        let outcomes: Vec<Outcome> = outcomes.iter().map(of).collect();
        let interval = answering.next();
        answering.take(&outcomes, interval).await;
        assert_eq!(answering.next().after, interval.until, "each second counts once");
        let sent = sent.try_recv().unwrap_or_default();
        let event = sent.into_iter().map(|change| match change {
            Change::Happened(event) => (event.what, event.port.unwrap().to_string(), event.detail.unwrap().to_string()),
            other => panic!("{other:?}"),
        });
        event.collect::<Vec<_>>()
    };
    let web = |what, text: &str| vec![(what, "shop/web/TCP/IPv4".to_owned(), text.to_owned())];
    let none: [(What, String, String); 0] = [];
    assert_eq!(take(&[(0, 1, 0), (1, 0, 1)]).await, none);
    let some =
        "the last 4 connections of clients outside the node to 192.0.2.2:80/TCP got no answer; other backends answer";
    assert_eq!(take(&[(1, 0, 3)]).await, web(What::Unanswered, some));
    assert_eq!(take(&[(1, 0, 3)]).await, none, "that is known");
    let all = "the last 8 connections of clients outside the node to 192.0.2.1:80/TCP, 192.0.2.2:80/TCP got no answer";
    assert_eq!(take(&[(0, 0, 1)]).await, web(What::Unanswered, all));
    assert_eq!(take(&[(0, 2, 0), (1, 1, 0)]).await, web(What::Answered, "clients outside the node get answers again"));
    let accepted = answering.accepted[&id];
    let begun = clock.now::<Moment>().0 - accepted.0;
    assert!((3_000..33_000).contains(&begun), "it began {begun} ms ago");
}
