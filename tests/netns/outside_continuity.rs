//! Connections of outside clients while nodelb is killed, restarted, resized, reloaded and upgraded, and while its services
//! and devices change. The full load: `OUTSIDE_ROUNDS=10 OUTSIDE_STRIDE=1`.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nodelb_prober::{Backend, Transport};

use crate::crash::{at_steps, wait};
use crate::host::{Daemon, Host, eventually, frontend, say};
use crate::lab::{Lab, POD_A1, POD_A2, POD_B};
use crate::lab_services::{ON_A1, ON_A2, ON_B, PACKETS_ON, Service};
use crate::network::ip;
use crate::outside::{TRANSPORTS, start};
use crate::outside_changes::restore_uplink;
use crate::outside_load::{Load, every};
use crate::sandbox;
use crate::seeded::number;
use crate::talk::{Server, TIMEOUT, Talk};

fn in_lab(test: &str, body: impl FnOnce(&Host, &Lab, &[Service; 2])) {
    with_backends(&format!("outside_continuity::{test}"), body);
}

/// Runs a test with the backends of [`Load`] on both nodes.
pub(crate) fn with_backends(test: &str, body: impl FnOnce(&Host, &Lab, &[Service; 2])) {
    sandbox::run(test, |sandbox| {
        let host = Host::without_the_test(sandbox);
        let lab = Lab::new();
        host.configure(PACKETS_ON);
        let mut servers = vec![lab.pod_a1.run(|| Server::start("a1", &POD_A1, 8_001))];
        servers.push(lab.pod_a2.run(|| Server::start("a2", &POD_A2, 8_001)));
        servers.push(lab.pod_b.run(|| Server::start("b", &POD_B, 8_001)));
        let probed = |name, pod: [&str; 2]| {
            let listen = pod.map(|ip| SocketAddr::new(ip.parse().unwrap(), 8_002));
            let listen: Vec<_> = TRANSPORTS.into_iter().flat_map(|each| listen.map(|at| (each, at))).collect();
            Backend::start(name, &listen).unwrap()
        };
        let mut backends = vec![lab.pod_a1.run(|| probed("a1", POD_A1))];
        backends.push(lab.pod_a2.run(|| probed("a2", POD_A2)));
        backends.push(lab.pod_b.run(|| probed("b", POD_B)));
        body(&host, &lab, &[Service::new(1, &[ON_A1, ON_A2, ON_B]), Service::new(2, &[ON_A1, ON_A2, ON_B])]);
    });
}

/// A change of the node, and what it does.
type Step<'a> = fn(&mut Life<'a>);

/// A node under load.
struct Life<'a> {
    host: &'a Host,
    services: &'a [Service; 2],
    daemon: Option<Daemon>,
    round: u32,
}

impl Life<'_> {
    fn start(&mut self) {
        self.daemon = Some(self.host.start());
    }

    fn kill(&mut self) {
        self.daemon.take().unwrap().kill();
    }

    fn stop(&mut self) {
        self.daemon.take().unwrap().stop();
    }

    /// With other limits, the connections are copied to new maps.
    fn resize(&mut self) {
        self.stop();
        let size = 20_000 + self.round;
        self.host.configure(&format!("max-slots = {size}\n{PACKETS_ON}max-connections = {size}\n"));
        self.start();
    }

    /// An upgrade to a version with another layout, in the first round.
    fn upgrade(&mut self) {
        self.kill();
        self.host.use_layout(2);
        self.start();
    }

    fn reload(&mut self) {
        let count = || self.host.log().matches("configuration reloaded").count();
        for unknown in ["reset", "pass"] {
            let (before, size) = (count(), 20_000 + self.round);
            let packets = format!("max-connections = {size}\nunknown = \"{unknown}\"");
            self.host.configure(&format!("max-slots = {size}\n{PACKETS_ON}{packets}\n"));
            self.daemon.as_ref().unwrap().signal(Signal::SIGHUP);
            eventually("the reload", || count() > before);
            thread::sleep(Duration::from_millis(300));
        }
    }

    /// Backends of both services go and come back.
    fn change_backends(&mut self) {
        for endpoints in [&[ON_A1, ON_B][..], &[ON_A1], &[ON_A1, ON_A2, ON_B], &[ON_B], &[ON_A1, ON_A2, ON_B]] {
            for service in self.services {
                let service = service.clone().on(endpoints);
                service.apply(self.host);
                eventually("the new backends", || {
                    let row = frontend(&format!("{}/UDP", service.load_balancer()[1])).unwrap();
                    row["status"] == "OK" && row["backends"].as_array().unwrap().len() == endpoints.len()
                });
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The uplink goes down and up. The kernel removes routes and addresses with it.
fn cut(pause: Duration) {
    ip(&["link", "set", "uplink", "down"]);
    thread::sleep(pause);
    restore_uplink();
}

#[test]
fn no_connection_is_lost_in_the_life_of_a_node() {
    in_lab("no_connection_is_lost_in_the_life_of_a_node", |host, lab, services| {
        let daemon = Some(start(host, &[&services[0], &services[1]]));
        let mut load = Load::start(lab, services);
        let mut life = Life { host, services, daemon, round: 0 };
        for round in 1..=number("OUTSIDE_ROUNDS", 1) {
            life.round = round;
            let steps: [(&str, Step<'_>); 8] = [
                ("kill -9", Life::kill),
                ("start", Life::start),
                ("backends that come and go", Life::change_backends),
                ("stop", Life::stop),
                ("start", Life::start),
                ("other limits", Life::resize),
                ("reload", Life::reload),
                ("upgrade", Life::upgrade),
            ];
            for (name, step) in steps {
                step(&mut life);
                load.assert_unharmed(&format!("round {round}, after {name}"));
            }
            for pause in [0, 1_200] {
                load.during(&format!("round {round}, the uplink down for {pause} ms"), || {
                    cut(Duration::from_millis(pause));
                });
            }
        }
        load.finish();
    });
}

/// `OUTSIDE_STRIDE=1` crashes nodelb after each operation, otherwise after each tenth one.
#[test]
fn no_connection_is_lost_when_nodelb_dies_at_any_step_of_a_start_and_of_updates() {
    let test = "no_connection_is_lost_when_nodelb_dies_at_any_step_of_a_start_and_of_updates";
    in_lab(test, |host, lab, services| {
        start(host, &[&services[0], &services[1]]).stop();
        let load = RefCell::new(Load::start(lab, services));
        let endpoints = [&[ON_A1][..], &[ON_A2, ON_B], &[ON_B]];
        let update = |daemon: &mut Daemon| {
            let other = Service::new(3, &[]);
            let row = || frontend(&format!("{}/UDP", other.load_balancer()[1]));
            for endpoints in endpoints {
                other.clone().on(endpoints).apply(host);
                wait(daemon, "the update", || {
                    row().is_some_and(|row| row["backends"].as_array().unwrap().len() == endpoints.len())
                });
            }
            host.withdraw("s3.yaml");
            wait(daemon, "the removal", || row().is_none());
        };
        let steps = at_steps(host, every("OUTSIDE_STRIDE", 10), update, |n| {
            load.borrow_mut().assert_unharmed(&format!("crash after operation {n}"));
            drop(std::fs::remove_file(host.path("services.d/s3.yaml")));
            host.start().stop();
            load.borrow_mut().assert_unharmed(&format!("restart after operation {n}"));
        });
        assert!(steps >= 10, "only {steps} crash points");
        say(&format!("{steps} crash points"));
        load.into_inner().finish();
    });
}

/// Each start continues with what the crash of the previous one has left of both layouts.
#[test]
fn no_connection_is_lost_when_nodelb_dies_at_any_step_of_an_upgrade() {
    in_lab("no_connection_is_lost_when_nodelb_dies_at_any_step_of_an_upgrade", |host, lab, services| {
        start(host, &[&services[0], &services[1]]).stop();
        let load = RefCell::new(Load::start(lab, services));
        host.use_layout(2);
        let steps = at_steps(
            host,
            every("OUTSIDE_STRIDE", 10),
            |_| {},
            |n| load.borrow_mut().assert_unharmed(&format!("upgrade, crash after operation {n}")),
        );
        assert!(steps >= 5 && host.pins.join("v2").exists(), "{steps} crash points");
        load.into_inner().finish();
    });
}

#[test]
fn no_connection_is_lost_while_other_backends_come_and_go() {
    in_lab("no_connection_is_lost_while_other_backends_come_and_go", |host, lab, services| {
        let _daemon = start(host, &[&services[0], &services[1]]);
        let address = &services[0].load_balancer()[0];
        let mut talks = Vec::new();
        for _ in 0..200 {
            let mut talk = lab.client.run(|| Talk::open(address, Transport::Tcp, TIMEOUT)).unwrap();
            let name = talk.ask().unwrap().name;
            talks.push((talk, name));
        }
        for endpoints in [&[ON_A1][..], &[ON_B], &[ON_A2, ON_B], &[ON_A1, ON_A2, ON_B]] {
            Service::new(1, endpoints).apply(host);
            eventually("the new backends", || {
                let row = frontend(&format!("{address}/TCP")).unwrap();
                row["backends"].as_array().unwrap().len() == endpoints.len()
            });
            for (talk, name) in &mut talks {
                assert_eq!(&talk.ask().unwrap().name, name, "a TCP connection keeps its backend");
            }
        }
    });
}
