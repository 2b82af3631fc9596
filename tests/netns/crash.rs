//! kill -9 after each map, pin and link operation of the daemon. Connections to a permanent service
//! keep working, and the next start converges.

use nodelb_prober::Backend;

use crate::continuity::Traffic;
use crate::crash_points::crash_points;
use crate::host::{Daemon, Host, answering, backend, eventually, is_served_by, service, was_killed};
use crate::sandbox;

/// Upper bound of the operations of one run; a loop that reaches it does not end.
pub(crate) const TOO_MANY: u32 = 500;

const BACKENDS: [&str; 2] = ["192.0.2.11:8080", "192.0.2.12:8080"];
const CHANGING: &str = "198.51.100.11:80";

/// A node whose second service changes from round to round.
struct Life<'a> {
    host: &'a Host,
    round: usize,
}

impl Life<'_> {
    fn next(&mut self) -> [&'static str; 1] {
        self.round += 1;
        [BACKENDS[self.round % 2]]
    }

    fn serve(&self, backends: &[&str]) {
        self.host.serve("changing.toml", &service("shop/changing", &[CHANGING], backends));
    }

    /// Updates one service, adds another and removes it again. Returns early if the daemon has
    /// crashed.
    fn update(&mut self, daemon: &mut Daemon) {
        let backends = self.next();
        self.serve(&backends);
        wait(daemon, "the update", || serves(CHANGING, &backends));
        self.host.serve("passing.toml", &service("shop/passing", &["198.51.100.12:80"], &BACKENDS));
        wait(daemon, "the addition", || serves("198.51.100.12:80", &BACKENDS));
        self.host.withdraw("passing.toml");
        wait(daemon, "the removal", || crate::host::frontend("198.51.100.12:80/UDP").is_none());
    }

    /// The start after a crash serves exactly the content of the files.
    fn recover(&mut self) {
        let backends = self.next();
        self.serve(&backends);
        let daemon = self.host.start();
        assert!(serves(CHANGING, &backends), "{:?}", crate::host::get("/frontends"));
        assert_eq!(answering(CHANGING), [name(backends[0])]);
        assert!(crate::host::frontend("198.51.100.12:80/TCP").is_none());
        daemon.stop();
    }
}

fn name(address: &str) -> &str {
    if address == BACKENDS[0] { "1" } else { "2" }
}

fn serves(address: &str, backends: &[&str]) -> bool {
    ["TCP", "UDP"].into_iter().all(|protocol| {
        let backends: Vec<String> = backends.iter().map(|backend| format!("{backend}/{protocol}")).collect();
        is_served_by(&format!("{address}/{protocol}"), &backends.iter().map(String::as_str).collect::<Vec<_>>())
    })
}

/// Waits until `done` holds or the daemon has ended.
pub(crate) fn wait(daemon: &mut Daemon, what: &str, mut done: impl FnMut() -> bool) {
    eventually(what, || done() || !daemon.is_alive());
}

/// Crashes the daemon at each crash point of `life` until it survives; calls `afterwards` after each crash. Returns the
/// number of operations.
pub(crate) fn at_every_step(host: &Host, life: impl FnMut(&mut Daemon), afterwards: impl FnMut(u32)) -> u32 {
    at_steps(host, crash_points(TOO_MANY), life, afterwards)
}

/// [`at_every_step`] after these operations.
pub(crate) fn at_steps(
    host: &Host,
    steps: impl Iterator<Item = u32>,
    mut life: impl FnMut(&mut Daemon),
    mut afterwards: impl FnMut(u32),
) -> u32 {
    for n in steps {
        let mut daemon = host.spawn(Some(n));
        if daemon.wait_ready() {
            life(&mut daemon);
        }
        let status = if daemon.is_alive() { daemon.terminate() } else { daemon.wait() };
        if status.success() {
            return n - 1;
        }
        assert!(was_killed(status), "nodelb ended with {status} instead of crashing:\n{}", host.log());
        afterwards(n);
    }
    panic!("still crashing after {TOO_MANY} operations");
}

fn stays(host: &Host) -> [Backend; 2] {
    host.serve("stays.toml", &service("shop/stays", &["198.51.100.10:80"], &BACKENDS));
    [backend("1", BACKENDS[0]), backend("2", BACKENDS[1])]
}

#[test]
fn at_every_step_of_the_first_start() {
    sandbox::run("crash::at_every_step_of_the_first_start", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = stays(&host);
        let mut life = Life { host: &host, round: 0 };
        let steps = at_every_step(
            &host,
            |_| {},
            |_| {
                life.recover();
                host.cleanup();
            },
        );
        assert!(steps >= 10, "only {steps} crash points");
    });
}

#[test]
fn at_every_step_of_a_restart_and_its_updates() {
    sandbox::run("crash::at_every_step_of_a_restart_and_its_updates", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = stays(&host);
        let life = std::cell::RefCell::new(Life { host: &host, round: 0 });
        life.borrow_mut().recover();
        let traffic = Traffic::start();
        let steps = at_every_step(
            &host,
            |daemon| life.borrow_mut().update(daemon),
            |n| {
                traffic.assert_unharmed(&format!("crash after operation {n}"));
                drop(std::fs::remove_file(host.path("services.d/passing.toml")));
                life.borrow_mut().recover();
                traffic.assert_unharmed(&format!("restart after operation {n}"));
            },
        );
        assert!(steps >= 10, "only {steps} crash points");
        traffic.finish();
    });
}

#[test]
fn at_every_step_of_a_resize() {
    sandbox::run("crash::at_every_step_of_a_resize", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = stays(&host);
        let mut life = Life { host: &host, round: 0 };
        host.configure("max-slots = 100\nmax-services = 100\nmax-frontends = 100");
        life.recover();
        let traffic = Traffic::start();
        let resize = |n: u32| {
            let size = 100 + n;
            host.configure(&format!("max-slots = {size}\nmax-services = {size}\nmax-frontends = {size}"));
        };
        resize(1);
        let steps = at_every_step(
            &host,
            |_| {},
            |n| {
                traffic.assert_unharmed(&format!("crash after operation {n}"));
                life.recover();
                traffic.assert_unharmed(&format!("restart after operation {n}"));
                resize(n + 1);
            },
        );
        assert!(steps >= 10, "only {steps} crash points");
        traffic.finish();
    });
}

#[test]
fn at_every_step_of_cleanup() {
    sandbox::run("crash::at_every_step_of_cleanup", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = stays(&host);
        for n in crash_points(TOO_MANY) {
            host.start().stop();
            let crashed = was_killed(host.try_cleanup(Some(n)).status);
            host.cleanup();
            if !crashed {
                assert!(n > 5, "only {} crash points", n - 1);
                return;
            }
        }
        panic!("still crashing after {TOO_MANY} operations");
    });
}
