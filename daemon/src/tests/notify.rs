use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use super::{Environment, Notifier};

fn received(supervisor: &UnixDatagram) -> String {
    let mut buffer = [0; 1024];
    supervisor.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let length = supervisor.recv(&mut buffer).unwrap();
    String::from_utf8(buffer[..length].to_vec()).unwrap()
}

fn connected(manager_name: &str) -> Notifier {
    let environment = Environment {
        socket: Some(manager_name.into()),
        watchdog_usec: Some("30000000".into()),
        watchdog_pid: Some(std::process::id().to_string()),
    };
    Notifier::connect(&environment).unwrap()
}

/// A supervisor and what reports to it. Neither needs the path of the socket any more.
fn pair() -> (UnixDatagram, Notifier) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    (UnixDatagram::bind(&path).unwrap(), connected(path.to_str().unwrap()))
}

#[test]
fn says_each_thing_in_the_protocols_words() {
    let (supervisor, notifier) = pair();
    notifier.started("3 services\nREADY=0");
    assert_eq!(received(&supervisor), "READY=1\nSTATUS=3 services READY=0\n");
    notifier.reloading("reading the configuration");
    let reloading = received(&supervisor);
    let mut lines = reloading.lines();
    assert_eq!(lines.next(), Some("RELOADING=1"));
    assert!(lines.next().unwrap().strip_prefix("MONOTONIC_USEC=").unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(lines.next(), Some("STATUS=reading the configuration"));
    notifier.watchdog();
    assert_eq!(received(&supervisor), "WATCHDOG=1\n");
    notifier.stopping("traffic goes on");
    assert_eq!(received(&supervisor), "STOPPING=1\nSTATUS=traffic goes on\n");
    assert_eq!(notifier.watchdog_interval(), Some(Duration::from_secs(15)));
}

#[test]
fn a_reload_during_the_start_does_not_report_that_the_daemon_is_ready() {
    let (supervisor, notifier) = pair();
    notifier.reloading("reading the configuration");
    assert_eq!(received(&supervisor), "STATUS=reading the configuration\n");
    notifier.reloaded("reloaded");
    assert_eq!(received(&supervisor), "STATUS=reloaded\n");
    notifier.reloading("again");
    assert_eq!(received(&supervisor), "STATUS=again\n");
    notifier.started("3 services");
    assert_eq!(received(&supervisor), "READY=1\nSTATUS=3 services\n");
    notifier.reloaded("reloaded");
    assert_eq!(received(&supervisor), "STATUS=reloaded\n", "no manager waits for this reload");
}

/// The daemon may have been reported as ready before every source was synced.
#[test]
fn a_start_that_is_complete_later_does_not_end_a_reload() {
    let (supervisor, notifier) = pair();
    notifier.started("no apiserver has responded yet");
    assert!(received(&supervisor).starts_with("READY=1\n"));
    notifier.reloading("reading the configuration");
    assert!(received(&supervisor).starts_with("RELOADING=1\n"));
    notifier.started("3 services");
    assert_eq!(received(&supervisor), "STATUS=3 services\n");
    for message in ["READY=1\nSTATUS=reloaded\n", "STATUS=reloaded\n"] {
        notifier.reloaded("reloaded");
        assert_eq!(received(&supervisor), message);
    }
}

#[test]
fn reaches_an_abstract_socket() {
    let name = format!("nodelb-test-{}", std::process::id());
    let supervisor = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    connected(&format!("@{name}")).stopping("here");
    assert_eq!(received(&supervisor), "STOPPING=1\nSTATUS=here\n");
}

#[test]
fn a_supervisor_that_does_not_read_holds_up_nothing() {
    let (_supervisor, notifier) = pair();
    for _ in 0..10_000 {
        notifier.watchdog();
    }
}

#[test]
fn without_a_supervisor_nothing_is_said() {
    let notifier = Notifier::connect(&Environment::default()).unwrap();
    notifier.started("no process receives this");
    assert_eq!(notifier.watchdog_interval(), None);
    assert!(Notifier::connect(&Environment { socket: Some("/nonexistent".into()), ..Default::default() }).is_err());
}

#[test]
fn the_watchdog_is_only_for_the_named_process() {
    let environment = |usec: &str, pid: Option<String>| Environment {
        socket: None,
        watchdog_usec: Some(usec.into()),
        watchdog_pid: pid,
    };
    let us = std::process::id();
    assert_eq!(environment("2000000", None).watchdog(), Some(Duration::from_secs(2)));
    assert_eq!(environment("2000000", Some(us.to_string())).watchdog(), Some(Duration::from_secs(2)));
    assert_eq!(environment("2000000", Some((us + 1).to_string())).watchdog(), None);
    assert_eq!(environment("0", None).watchdog(), None);
    assert_eq!(environment("soon", None).watchdog(), None);
}
