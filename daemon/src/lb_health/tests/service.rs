use std::net::Ipv4Addr;

use nodelb_core::model::addr::{Addr, Family};
use nodelb_core::model::service::BackendState::{Active, Terminating};
use nodelb_core::model::service::{FrontendKind, FrontendSpec, Source};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;
use crate::lb_health::tests::{HERE, World, ask, free, raw, service, slice, until};
use crate::status::Health;

fn serve(world: &World) -> JoinHandle<()> {
    tokio::spawn(run(world.entry.clone(), Slots::new(world.entry.bounds.limits())))
}

fn upsert(name: &str, number: u8, port: u16) -> Change {
    Change::UpsertService(service(name, number, port))
}

fn offer(name: &str, backends: &[(u8, nodelb_core::model::service::BackendState)]) -> Change {
    Change::UpsertSlice(slice(name, backends))
}

fn remove(name: &str) -> Change {
    Change::RemoveService(name.parse().expect("a name"), Source::Kubernetes)
}

/// The complete answer of kube-proxy (1.36), as its Go server writes it.
fn answer(name: &str, status: &str, count: usize, is_healthy: bool) -> String {
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"{name}\"\n\t}},\n\
         \t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {is_healthy}\n}}"
    );
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: {count}\r\nDate: D\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

async fn comes(at: SocketAddr, expected: String) {
    until(at, |answer| answer.as_ref().is_ok_and(|answer| *answer == expected)).await;
}

#[tokio::test]
async fn whole_answers_are_those_of_kube_proxy() {
    let mut world = World::synced();
    let here = free().await;
    let _server = serve(&world);
    world.apply([upsert("shop/web", 1, here.port())]);
    comes(here, answer("web", "503 Service Unavailable", 0, true)).await;
    world.apply([offer("shop/web", &[(1, Active), (2, Active), (3, Terminating)])]);
    assert_eq!(ask(here, "/").await.expect("answered"), answer("web", "200 OK", 2, true), "at once");
    world.apply([offer("shop/web", &[(3, Terminating)])]);
    assert_eq!(
        ask(here, "/any/path?at=all").await.expect("answered"),
        answer("web", "503 Service Unavailable", 0, true)
    );
    for method in ["POST", "DELETE", "OPTIONS", "BREW"] {
        let answer = raw(here, &format!("{method} / HTTP/1.1\r\nHost: lb\r\nConnection: close\r\n\r\n")).await;
        assert!(answer.expect("answered").starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_work_has_nothing_to_offer() {
    let mut world = World::synced();
    world.apply([upsert("shop/web", 1, 31_000), offer("shop/web", &[(1, Active)])]);
    let reply = reply(world.entry.view.clone(), ServiceName::new("shop", "web"), Family::Ipv4);
    assert_eq!((reply("/").status.as_u16(), reply("/").weight), (200, Some(1)));
    tokio::time::advance(Duration::from_secs(61)).await;
    let ill = reply("/");
    assert_eq!((ill.status.as_u16(), ill.weight), (503, Some(1)));
    assert!(ill.body.ends_with("\t\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": false\n}"), "{}", ill.body);
    world.health.send_replace(Arc::new(Health::unchecked(world.entry.view.clock.now())));
    assert_eq!(reply("/").status.as_u16(), 200);
}

#[tokio::test]
async fn ports_open_and_close_with_their_services() {
    let mut world = World::synced();
    let [first, second] = [free().await, free().await];
    let _server = serve(&world);
    let other = free().await;
    world.apply([upsert("shop/web", 1, first.port()), upsert("shop/other", 2, other.port())]);
    world.apply([offer("shop/web", &[(1, Active)]), offer("shop/other", &[(2, Active)])]);
    comes(first, answer("web", "200 OK", 1, true)).await;
    world.apply([upsert("shop/web", 1, second.port())]);
    comes(second, answer("web", "200 OK", 1, true)).await;
    assert!(ask(first, "/").await.is_err(), "the old port is closed");
    world.apply([remove("shop/web")]);
    until(second, Result::is_err).await;
    assert_eq!(ask(other, "/").await.expect("untouched"), answer("other", "200 OK", 1, true));
    world.apply([Change::Node(nodelb_core::model::node::NodeFacts { name: "n1".into(), ..Default::default() })]);
    until(other, Result::is_err).await;
}

#[tokio::test]
async fn of_two_services_with_one_port_the_older_is_asked() {
    let mut world = World::synced();
    let here = free().await;
    let _server = serve(&world);
    world.apply([upsert("shop/old", 1, here.port()), upsert("shop/young", 2, here.port())]);
    comes(here, answer("old", "503 Service Unavailable", 0, true)).await;
    let Change::HealthCheckPortError(Some(young), Some(error)) = world.next().await else { panic!("an error") };
    assert_eq!(young.to_string(), "shop/young");
    assert_eq!(
        &*error,
        &format!(
            "cannot answer health checks on healthCheckNodePort {}: shop/old uses this port: change the healthCheckNodePort of one of the two services",
            here.port()
        )
    );
    world.apply([remove("shop/old")]);
    assert_eq!(world.next().await, Change::HealthCheckPortError(Some(young), None));
    comes(here, answer("young", "503 Service Unavailable", 0, true)).await;
}

#[tokio::test]
async fn a_port_in_use_is_reported_and_retried_while_the_others_serve() {
    let mut world = World::synced();
    let taken = TcpListener::bind((HERE, 0)).await.expect("a port");
    let (bad, good) = (taken.local_addr().expect("an address"), free().await);
    let _server = serve(&world);
    world.apply([upsert("shop/bad", 1, bad.port()), upsert("shop/good", 2, good.port())]);
    comes(good, answer("good", "503 Service Unavailable", 0, true)).await;
    let Change::HealthCheckPortError(Some(name), Some(error)) = world.next().await else { panic!("an error") };
    assert_eq!(name.to_string(), "shop/bad");
    assert!(error.contains(&format!("another process listens on {bad}: stop it")), "{error}");
    drop(taken);
    assert_eq!(world.next().await, Change::HealthCheckPortError(Some(name), None));
    comes(bad, answer("bad", "503 Service Unavailable", 0, true)).await;
}

#[tokio::test]
async fn a_plan_has_each_port_at_each_address_of_its_family() {
    let mut world = World::synced();
    world.apply([upsert("shop/web", 1, 31_000)]);
    let snapshot = world.entry.view.snapshot.borrow().clone();
    let addresses: BTreeSet<Addr> =
        ["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(|addr| addr.parse().expect("an address")).into();
    let plan = |all: &[Family]| {
        let plan = Plan::new(&snapshot.facts.health_check_ports, &addresses, &all.iter().copied().collect());
        plan.listeners.keys().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(plan(&[]), ["192.0.2.1:31000", "192.0.2.2:31000"]);
    assert_eq!(plan(&[Family::Ipv6]), ["192.0.2.1:31000", "192.0.2.2:31000"]);
    assert_eq!(plan(&[Family::Ipv4]), ["0.0.0.0:31000"]);
}

/// A load balancer that asked at its own address, which a route makes local, was refused and took every node out.
#[tokio::test]
async fn a_load_balancer_may_ask_at_its_own_address() {
    let mut world = World::synced();
    let port = free().await.port();
    let Change::UpsertService(mut service) = upsert("shop/web", 1, port) else { panic!("a service") };
    let balancer = FrontendSpec { addr: "127.0.0.77".parse().unwrap(), port: 80, kind: FrontendKind::LoadBalancer };
    // No device has it, and no route leads to it.
    let absent = FrontendSpec { addr: "198.51.100.77".parse().unwrap(), ..balancer };
    service.ports[0].frontends.extend([balancer, absent]);
    let _server = serve(&world);
    world.apply([Change::UpsertService(service)]);
    comes((Ipv4Addr::new(127, 0, 0, 77), port).into(), answer("web", "503 Service Unavailable", 0, true)).await;
    assert!(world.reported.try_recv().is_err(), "it is no problem that an address is not here");
}
