use nodelb_core::change::Change;
use nodelb_core::datapath::{Limits, Moment};
use nodelb_core::engine::{Engine, EngineConfig, Snapshot};
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::service::{FrontendKind, FrontendSpec, Service, ServicePort, Source};
use nodelb_core::state::MapState;
use nodelb_core::story::Client;

use super::{Dialler, StatusCode, page};

fn snapshot() -> Snapshot {
    let config = EngineConfig { sources: [Source::Files].into(), max_services: 100, ..EngineConfig::default() };
    let mut engine = Engine::new(config, MapState::default());
    let at: nodelb_core::addr::L4Addr = "10.96.7.7:80".parse().unwrap();
    let frontends = vec![FrontendSpec { addr: at.addr, port: at.port, kind: FrontendKind::ClusterIP }];
    let port = ServicePort { name: "http".into(), protocol: at.protocol, frontends };
    let web = Service { ports: vec![port], ..Service::new("shop/web".parse().unwrap(), Source::Files) };
    let late = Service { created: Some(1), name: "shop/late".parse().unwrap(), ..web.clone() };
    engine.change(Change::UpsertService(web));
    engine.change(Change::UpsertService(late));
    engine.change(Change::Synced { source: Source::Files, incomplete: None });
    let limits = Limits { frontends: 100, services: 100, slots: 100, affinity: 4 };
    engine.reconcile(&mut MemoryDatapath::new(limits), Moment(0));
    engine.snapshot(Moment(0))
}

fn told(to: &str, from: Client) -> String {
    page(&snapshot().story(to.parse().unwrap(), from), Moment(5_000)).to_text()
}

#[test]
fn a_refusal_reads_from_the_client_to_the_verdict() {
    let expected = "\
trace:
Step      Finding
client    a process in the node's own network namespace dials 10.96.7.7:80/TCP
hook      connect4; nodelb's own sockets are left alone there, and nobody else's
frontend  10.96.7.7:80/TCP is a ClusterIP address of shop/web, port http
claim     shop/late claims 10.96.7.7:80/TCP as ClusterIP, too: 10.96.7.7:80/TCP is owned by shop/web, which is older; takes over when that goes
view      cluster: every backend that is selected (internalTrafficPolicy is Cluster)
affinity  none: each connection is chosen for by itself
backends  none is known: no slice, or file, names one for this port
status    Done for 5s: the kernel has taken it (compare with what it holds now: /diff)
verdict   refused at once with ECONNREFUSED (connection refused): nobody could answer
";
    let text = told("10.96.7.7:80", Client::Host);
    assert!(text.contains(expected), "{text}");
}

#[test]
fn what_is_no_service_passes_and_near_misses_are_told() {
    let text = told("10.96.7.7:443", Client::Pod);
    assert!(text.contains("is served at another port or protocol: 10.96.7.7:80/TCP"), "{text}");
    assert!(text.contains("passes through: goes to 10.96.7.7:443/TCP itself"), "{text}");
    let outside = told("10.96.7.7:80", Client::Outside);
    assert!(outside.contains("packets from outside are not translated by nodelb yet"), "{outside}");
}

#[test]
fn who_dials_is_read_from_what_operators_know() {
    for (text, dialler) in [
        ("host", Dialler::Client(Client::Host)),
        ("outside", Dialler::Client(Client::Outside)),
        ("4026531840", Dialler::Namespace(4_026_531_840)),
        ("10.1.0.1", Dialler::At("10.1.0.1".parse().unwrap())),
    ] {
        assert_eq!(text.parse::<Dialler>(), Ok(dialler), "{text}");
    }
    assert!("nobody".parse::<Dialler>().unwrap_err().contains("expected host, pod, outside"));
}

#[test]
fn an_address_that_nobody_is_known_to_have_is_not_taken_for_somebody_elsewhere() {
    let at = |text: &str| text.parse::<Dialler>().unwrap().client(&snapshot());
    assert_eq!(at("127.0.0.1"), Ok(Client::Host));
    let problem = at("10.1.0.9").unwrap_err();
    assert_eq!(problem.status, StatusCode::BAD_REQUEST);
    assert_eq!(problem.message, "nodelb cannot tell where 10.1.0.9 is: say from=pod or from=outside");
}
