//! Addresses of the admin API that cannot be opened: services are served, the daemon reports the
//! address, the reason and the remedy, and listens there as soon as possible.

use std::fs;
use std::net::TcpListener;
use std::process::Command;

use nodelb_prober::{Backend, Transport};

use crate::host::{self, Host, answer, answering, connect, eventually};
use crate::sandbox::{self, Sandbox};

const WEB: &str = "198.51.100.10:80";
const BACKEND: &str = "192.0.2.11:80";

fn node(sandbox: &Sandbox) -> (Host, Backend) {
    let host = Host::new(sandbox);
    host.serve("web.toml", &host::service("shop/web", &[WEB], &[BACKEND]));
    (host, host::backend("a", BACKEND))
}

/// The row about listeners in `/readyz`, which must return 200.
fn readyz() -> String {
    answer("/readyz", "text/plain").unwrap_or_default()
}

fn closed() -> Option<String> {
    let metrics = answer("/metrics", "text/plain")?;
    metrics.lines().find_map(|line| line.strip_prefix("nodelb_admin_listeners_closed ")).map(str::to_owned)
}

#[test]
fn the_default_configuration_starts_on_a_host_without_ipv6() {
    sandbox::run("listeners::the_default_configuration_starts_on_a_host_without_ipv6", |sandbox| {
        let (host, _backend) = node(sandbox);
        let disable = |value: &str| fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", value).unwrap();
        disable("1");
        // Otherwise the sandbox can bind to any address.
        fs::write("/proc/sys/net/ipv6/ip_nonlocal_bind", "0").unwrap();
        let checked = Command::new(env!("CARGO_BIN_EXE_nodelb"))
            .args(["check-config", "--config"])
            .arg(host.path("nodelb.toml"))
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(
            checked.status.success() && output.contains("note: admin.listen: [::1]:9890 cannot be opened here"),
            "{output}"
        );
        let daemon = host.start();
        assert_eq!(answering(WEB), ["a"]);
        host.assert_logged("cannot open [::1]:9890 of admin.listen: Cannot assign requested address");
        host.assert_logged("remove it from admin.listen");
        let ready = readyz();
        assert!(ready.contains("[::1]:9890 of admin.listen is not open"), "{ready}");
        assert_eq!(closed().as_deref(), Some("1"));
        disable("0");
        eventually("[::1]:9890 is open", || {
            TcpListener::bind("[::1]:9890").is_err() && closed().as_deref() == Some("0")
        });
        assert!(!readyz().contains("[::1]:9890"), "{}", readyz());
        host.assert_logged_times("cannot open [::1]:9890 of admin.listen", 1);
        daemon.stop();
    });
}

#[test]
fn a_process_that_has_the_port_keeps_no_daemon_from_serving() {
    sandbox::run("listeners::a_process_that_has_the_port_keeps_no_daemon_from_serving", |sandbox| {
        let (host, _backend) = node(sandbox);
        let holders = ["127.0.0.1:9890", "[::1]:9890"].map(|address| TcpListener::bind(address).unwrap());
        let daemon = host.start();
        assert_eq!(answering(WEB), ["a"]);
        for line in [
            "cannot open 127.0.0.1:9890 of admin.listen: Address already in use",
            "no address of the admin API is open",
        ] {
            eventually(line, || host.log().contains(line));
        }
        drop(holders);
        eventually("the admin API answers", || closed().as_deref() == Some("0"));
        host.assert_logged("the admin API listens on 127.0.0.1:9890");
        daemon.stop();
    });
}

#[test]
fn the_unix_socket_answers_where_no_address_is_open() {
    sandbox::run("listeners::the_unix_socket_answers_where_no_address_is_open", |sandbox| {
        let (host, _backend) = node(sandbox);
        let socket = host.path("nodelb.sock");
        host.configure(&format!("[admin]\nlisten = [\"127.0.0.1:9890\"]\nsocket = {socket:?}\n"));
        let _holder = TcpListener::bind("127.0.0.1:9890").unwrap();
        let daemon = host.start();
        let status =
            Command::new(env!("CARGO_BIN_EXE_nodelb")).args(["status", "--admin"]).arg(&socket).output().unwrap();
        let output = String::from_utf8_lossy(&status.stdout).into_owned();
        let names_it = output.contains("127.0.0.1:9890") && output.contains("admin.listen cannot be opened");
        assert!(names_it, "{output} {status:?}");
        daemon.stop();
    });
}

#[test]
fn a_second_nodelb_is_refused_by_the_pin_directory_and_harms_nothing() {
    sandbox::run("listeners::a_second_nodelb_is_refused_by_the_pin_directory_and_harms_nothing", |sandbox| {
        let (host, _backend) = node(sandbox);
        let socket = host.path("nodelb.sock");
        host.configure(&format!("[admin]\nsocket = {socket:?}\n"));
        let daemon = host.start();
        let second = Command::new(env!("CARGO_BIN_EXE_nodelb"))
            .args(["run", "--config"])
            .arg(host.path("nodelb.toml"))
            .env_remove("NOTIFY_SOCKET")
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&second.stderr).into_owned();
        assert_eq!(second.status.code(), Some(69), "{output}");
        assert!(output.contains(&format!("another nodelb is running and uses {}", host.pins.display())), "{output}");
        assert!(socket.exists(), "the first one's socket stays");
        assert_eq!(connect(WEB, Transport::Tcp, 3).failures(), 0);
        assert!(answer("/status", "text/plain").is_some());
        daemon.stop();
        // Nothing of the refused daemon is left that would delay the next start.
        host.start().stop();
    });
}
