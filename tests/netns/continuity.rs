//! Connections survive everything that happens to nodelb: kill, stop, restart, upgrade, reload.

use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nodelb_prober::{Plan, Probe, Transport};

use crate::host::{Host, answering, backend, eventually, get, is_served_by, service, socket};
use crate::links::attached;
use crate::sandbox;

const SERVICE: &str = "198.51.100.10:80";
const BACKENDS: [&str; 2] = ["192.0.2.11:8080", "192.0.2.12:8080"];

/// A thousand connections per second each over TCP and UDP to a permanent service; none may fail.
pub(crate) struct Traffic {
    probes: [Probe; 2],
}

impl Traffic {
    pub(crate) fn start() -> Self {
        let plan = |transport| Plan::new(socket(SERVICE), transport);
        Self { probes: [Transport::Tcp, Transport::Udp].map(|transport| Probe::start(plan(transport))) }
    }

    /// Panics with the time of the failure if any connection has failed so far.
    pub(crate) fn assert_unharmed(&self, when: &str) {
        for probe in &self.probes {
            let tally = probe.tally();
            assert_eq!(tally.failures(), 0, "{when}: {tally}, {:?}", tally.first_failure);
        }
    }

    /// Stops at once; panics if any connection has failed.
    pub(crate) fn end(self, when: &str) {
        for probe in self.probes {
            let tally = probe.finish();
            assert_eq!(tally.failures(), 0, "{when}: {tally}, {:?}", tally.first_failure);
            assert!(tally.ok() > 0, "{when}: there was no traffic");
        }
    }

    /// Continues until there was enough traffic for a conclusion, then stops; panics if any
    /// connection has failed.
    pub(crate) fn finish(self) {
        for probe in self.probes {
            eventually("enough traffic", || probe.tally().ok() + probe.tally().failures() >= 1000);
            let tally = probe.finish();
            assert_eq!(tally.failures(), 0, "{tally}, {:?}", tally.first_failure);
        }
    }
}

fn pause() {
    thread::sleep(Duration::from_millis(300));
}

fn serve_both(host: &Host) {
    host.serve("stays.toml", &service("shop/stays", &[SERVICE], &BACKENDS));
}

fn backends() -> [nodelb_prober::Backend; 2] {
    [backend("1", BACKENDS[0]), backend("2", BACKENDS[1])]
}

#[test]
fn kill_nine_and_a_restart_lose_nothing() {
    sandbox::run("continuity::kill_nine_and_a_restart_lose_nothing", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = backends();
        serve_both(&host);
        let mut daemon = host.start();
        let traffic = Traffic::start();
        for round in 0..5 {
            pause();
            daemon.kill();
            pause();
            let left = &BACKENDS[round % 2..=round % 2];
            host.serve("changed.toml", &service("shop/changed", &["198.51.100.11:80"], left));
            daemon = host.start();
            traffic.assert_unharmed("after a restart");
            let served = format!("{}/TCP", left[0]);
            assert!(is_served_by("198.51.100.11:80/TCP", &[&served]), "ready means that the new backend is served");
        }
        daemon.stop();
        traffic.finish();
    });
}

#[test]
fn stopping_leaves_traffic_flowing() {
    sandbox::run("continuity::stopping_leaves_traffic_flowing", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = backends();
        serve_both(&host);
        let daemon = host.start();
        let traffic = Traffic::start();
        pause();
        daemon.stop();
        pause();
        assert_eq!(answering(SERVICE), ["1", "2"], "no daemon runs, both answer");
        assert!(get("/").is_none(), "the API is gone");
        host.start().stop();
        traffic.finish();
        host.cleanup();
    });
}

#[test]
fn an_upgrade_takes_over_what_the_old_binary_left() {
    sandbox::run("continuity::an_upgrade_takes_over_what_the_old_binary_left", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = backends();
        serve_both(&host);
        let old = host.start();
        let traffic = Traffic::start();
        let links = host.pins.join("v1/links");
        let before = attached(&links);
        let other_binary = host.path("nodelb");
        std::fs::copy(env!("CARGO_BIN_EXE_nodelb"), &other_binary).unwrap();
        pause();
        old.kill();
        let mut new = host.launch(Command::new(other_binary), &[]);
        assert!(new.wait_ready(), "{}", host.log());
        // Its programs would become the same.
        assert_eq!(before, attached(&links));
        pause();
        new.stop();
        traffic.finish();
    });
}

#[test]
fn a_bad_configuration_is_refused_whole() {
    sandbox::run("continuity::a_bad_configuration_is_refused_whole", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = backends();
        serve_both(&host);
        let daemon = host.start();
        let traffic = Traffic::start();
        // The directory is a different one, and one key does not exist: neither may take effect.
        host.write("nodelb.toml", "[files]\ndirectory = \"/run/nodelb-test/elsewhere\"\nno-such-key = 1\n");
        daemon.signal(Signal::SIGHUP);
        eventually("the refusal in the log", || host.log().contains("no-such-key"));
        host.serve("more.toml", &service("shop/more", &["198.51.100.11:80"], &BACKENDS));
        eventually("the old directory is still watched", || {
            is_served_by(
                "198.51.100.11:80/TCP",
                &BACKENDS.map(|address| format!("{address}/TCP")).each_ref().map(String::as_str),
            )
        });
        traffic.assert_unharmed("after the refusal");
        daemon.stop();
        traffic.finish();
    });
}

#[test]
fn a_good_configuration_is_taken_over() {
    sandbox::run("continuity::a_good_configuration_is_taken_over", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = backends();
        serve_both(&host);
        let daemon = host.start();
        let traffic = Traffic::start();
        let elsewhere = host.path("elsewhere");
        std::fs::rename(host.path("services.d"), &elsewhere).unwrap();
        let config = std::fs::read_to_string(host.path("nodelb.toml")).unwrap();
        host.write("nodelb.toml", &config.replace("services.d", "elsewhere"));
        daemon.signal(Signal::SIGHUP);
        host.write("elsewhere/more.toml", &service("shop/more", &["198.51.100.11:80"], &BACKENDS[..1]));
        eventually("the new directory is read", || is_served_by("198.51.100.11:80/TCP", &["192.0.2.11:8080/TCP"]));
        assert_eq!(answering(SERVICE), ["1", "2"]);
        daemon.stop();
        traffic.finish();
    });
}

#[test]
fn the_watchdog_is_fed() {
    sandbox::run("continuity::the_watchdog_is_fed", |sandbox| {
        let host = Host::new(sandbox);
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodelb"));
        command.env("WATCHDOG_USEC", "2000000");
        let mut daemon = host.launch(command, &[]);
        assert!(daemon.wait_ready(), "{}", host.log());
        for _ in 0..3 {
            assert!(daemon.wait_for("WATCHDOG=1"), "{}", host.log());
        }
        daemon.stop();
    });
}
