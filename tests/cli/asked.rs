//! What operators type about services and addresses, with a daemon that reads files.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Finished, NODELB, nodelb};

const SERVICES: &str = r#"
[[service]]
name = "shop/web"
frontends = ["198.51.100.10:80", "[2001:db8:f::10]:80"]
backends = ["203.0.113.11:8080", "203.0.113.12:8080", "[2001:db8:1::11]:8080"]

[[service]]
name = "shop/api"
frontends = ["198.51.100.11:80"]
backends = ["203.0.113.11:8081"]

[[service]]
name = "infra/dns"
frontends = ["198.51.100.12:53/UDP"]
backends = ["203.0.113.13:53"]
"#;

/// A daemon; killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    socket: String,
    _scratch: tempfile::TempDir,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let at = |name: &str| scratch.path().join(name);
        std::fs::create_dir(at("services.d")).expect("a directory");
        std::fs::write(at("services.d/a.toml"), SERVICES).expect("a file");
        let (services, state, socket) = (at("services.d"), at("state"), at("nodelb.sock"));
        let config = format!(
            "[files]\ndirectory = {services:?}\n[state]\ndirectory = {state:?}\n[admin]\nlisten = []\nsocket = {socket:?}\n"
        );
        std::fs::write(at("nodelb.toml"), config).expect("a file");
        let mut command = Command::new(NODELB);
        command.args(["run", "--datapath", "memory", "--config"]).arg(at("nodelb.toml"));
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts");
        let socket = socket.to_str().expect("UTF-8").to_owned();
        let daemon = Self { child, socket, _scratch: scratch };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !daemon.ask("services").stdout.contains("infra/dns") {
            assert!(Instant::now() < deadline, "the services are not served");
            std::thread::sleep(Duration::from_millis(50));
        }
        daemon
    }

    /// The Unix socket of the admin API.
    pub(crate) fn socket(&self) -> &str {
        &self.socket
    }

    /// Runs a command, such as `frontends web`.
    pub(crate) fn ask(&self, line: &str) -> Finished {
        nodelb(&line.split(' ').chain(["--admin", &self.socket]).collect::<Vec<_>>())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop((self.child.kill(), self.child.wait()));
    }
}

/// Once, `diff`, `connections` and `drops` of a misspelt name succeeded, and so did `--address` of any address.
#[test]
fn what_does_not_exist_is_said_with_the_same_exit_code_by_every_command() {
    let daemon = Daemon::start();
    for command in ["services", "frontends", "backends", "maps", "history", "diff", "trace", "connections", "drops"] {
        let Finished { code, stdout, stderr } = daemon.ask(&format!("{command} shop/wep"));
        let expected = "nodelb: there is no service shop/wep; did you mean shop/web?\n";
        assert_eq!((code, &*stdout, &*stderr), (4, "", expected), "{command}");
    }
    for command in ["services", "frontends", "backends", "maps", "history", "diff"] {
        let Finished { code, stderr, .. } = daemon.ask(&format!("{command} --address 192.0.2.99"));
        assert_eq!((code, &*stderr), (4, "nodelb: no service uses 192.0.2.99; see `nodelb frontends`\n"), "{command}");
    }
    assert_eq!(daemon.ask("connections --address 192.0.2.99").code, 0, "any client may have the address");
}

/// Once, `diff -n` had no effect, and `maps -n` was refused as if the daemon had another version.
#[test]
fn a_namespace_filters_the_differences_and_the_maps() {
    let daemon = Daemon::start();
    assert!(daemon.ask("diff -n infra").stdout.contains("1 service, 1 frontend;"));
    assert!(daemon.ask("diff -n other").stdout.contains("0 services, 0 frontends;"));
    let maps = daemon.ask("maps -n infra").stdout;
    assert!(maps.contains("infra/dns") && !maps.contains("shop/"), "{maps}");
}

/// Once, `diagnose web` was refused, and `backends 203.0.113.11` was said to be no service.
#[test]
fn a_service_is_named_by_its_short_name_or_by_an_address() {
    let daemon = Daemon::start();
    for named in ["web", "shop/web", "198.51.100.10", "198.51.100.10:80", "[2001:DB8:f::10]:80", "203.0.113.12:8080"] {
        let said = daemon.ask(&format!("diagnose {named} --no-connect")).stdout;
        assert!(said.starts_with("shop/web: "), "{named}: {said}");
    }
    let several = daemon.ask("diagnose 203.0.113.11 --no-connect");
    let expected = "nodelb: several services use 203.0.113.11: name one of shop/api, shop/web\n";
    assert_eq!((several.code, &*several.stderr), (64, expected));
    let rows = daemon.ask("backends 203.0.113.11").stdout;
    assert!(rows.contains("shop/api") && rows.contains("shop/web") && !rows.contains("203.0.113.12"), "{rows}");
    let rows = daemon.ask("frontends [2001:db8:f::10]").stdout;
    assert!(rows.contains("shop/web") && !rows.contains("198.51.100.10"), "{rows}");
    assert_eq!(daemon.ask("frontends 198.51.100.10 --address 198.51.100.11").code, 64);
    assert_eq!(daemon.ask("trace [2001:db8:f::10]:80 --from fe80::1%eth0").code, 0);
}

/// A reboot of a host with fifty services was fifty commands.
#[test]
fn a_host_is_drained_for_all_its_services_at_once_or_for_none() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let daemon = Daemon::start();
    let refused = daemon.ask("drain 203.0.113.11");
    let expected = "nodelb: 203.0.113.11 is the last healthy backend of shop/api on TCP/IPv4; nothing is drained; drain it \
                    nevertheless with --force\n";
    assert_eq!((refused.code, &*refused.stderr), (75, expected));
    assert!(!daemon.ask("backends").stdout.contains("Maintenance"));
    let drained = daemon.ask("drain 203.0.113.11 --force --wait");
    assert_eq!((drained.code, &*drained.stderr), (0, "No client outside this node is connected to 203.0.113.11.\n"));
    assert_eq!(drained.stdout, "203.0.113.11 is drained by root until nodelb undrain, for shop/api, shop/web\n");
    assert_eq!(daemon.ask("backends 203.0.113.11").stdout.matches("drained by root").count(), 2);
    let undrained = daemon.ask("undrain 203.0.113.11").stdout;
    assert_eq!(undrained, "203.0.113.11 is no longer drained, for shop/api, shop/web\n");
    assert_eq!(daemon.ask("undrain 203.0.113.11").code, 4);
    assert_eq!(daemon.ask("drain 203.0.113.99").code, 4);
}
