//! The node's addresses change while the daemon runs: which addresses accept NodePorts, and which
//! services yield to an address of the node.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nodelb_prober::{Plan, Probe, Transport, probe};

use crate::host::{Host, assert_within, backend, errno, eventually, frontend, is_served_by, service, socket};
use crate::network::ip;
use crate::pod::Pod;
use crate::sandbox;

const BACKEND: &str = "192.0.2.11:8080";

/// Maximum time from a change on an interface to the first connection that is affected.
const LIMIT: Duration = Duration::from_secs(1);

/// A NodePort in both families.
const WEB: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  clusterIP: 198.51.100.1
  clusterIPs: [198.51.100.1, "2001:db8:f::1"]
  ports: [{name: http, port: 80, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-4, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [192.0.2.11]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-6, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{name: http, port: 8080}]
endpoints: [{addresses: ["2001:db8:b::11"]}]
"#;

/// A node with an interface whose peer is in the same namespace.
fn host(sandbox: &sandbox::Sandbox) -> Host {
    ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "eth1"]);
    ip(&["link", "set", "eth0", "up"]);
    ip(&["link", "set", "eth1", "up"]);
    Host::new(sandbox)
}

fn add(address: &str) {
    ip(&["address", "add", address, "dev", "eth0", "nodad"]);
}

fn remove(address: &str) {
    ip(&["address", "delete", address, "dev", "eth0"]);
}

fn policy(host: &Host, nodeport_addresses: &str) {
    host.configure(&format!("[node]\nnodeport-addresses = {nodeport_addresses}"));
}

/// The backend that answers one connection; empty if it fails. A packet that is sent while its
/// address is added or removed may be lost, so the timeout is short.
fn answers(address: &str) -> String {
    let plan = Plan { timeout: Duration::from_millis(200), ..Plan::new(socket(address), Transport::Tcp) };
    probe::connect_times(plan, 1).answered.into_keys().collect()
}

/// Maximum duration of duplicate address detection.
const DETECTION: Duration = Duration::from_secs(3);

/// Waits until this backend answers at the address, or none if `who` is empty.
fn soon(what: &str, address: &str, who: &str) {
    soon_after(Duration::ZERO, what, address, who);
}

/// [`soon`] with additional time for the kernel.
fn soon_after(wait: Duration, what: &str, address: &str, who: &str) {
    let start = Instant::now();
    eventually(what, || answers(address) == who);
    let took = start.elapsed();
    let limit = wait + LIMIT;
    assert_within(what, limit, took);
}

/// Number of log lines that contain this text.
fn log_lines(host: &Host, what: &str) -> usize {
    host.log().lines().filter(|line| line.contains(what)).count()
}

#[test]
fn nodeports_follow_the_addresses() {
    sandbox::run("addresses::nodeports_follow_the_addresses", |sandbox| {
        let host = host(sandbox);
        let _backends = [backend("web", BACKEND), backend("web", "[2001:db8:b::11]:8080")];
        policy(&host, r#"["203.0.113.0/24", "2001:db8:c::/48"]"#);
        host.serve("web.yaml", WEB);
        let daemon = host.start();
        assert_eq!(errno("203.0.113.7:30080", Transport::Tcp), "ENETUNREACH");
        let row = frontend("0.0.0.0:30080/TCP").unwrap();
        assert!(row["error"].as_str().unwrap().starts_with("not answered: "), "{row}");
        for address in ["203.0.113.7/32", "2001:db8:c::7/128"] {
            let (ip, _) = address.rsplit_once('/').unwrap();
            let destination = if ip.contains(':') { format!("[{ip}]:30080") } else { format!("{ip}:30080") };
            let before = log_lines(&host, "addresses of this node");
            for _ in 0..3 {
                add(address);
                soon(&format!("{ip} is answered"), &destination, "web");
                remove(address);
                soon(&format!("{ip} is not"), &destination, "");
            }
            host.assert_logged_times("addresses of this node", before + 6);
        }
        // An address of an interface that is down is not an address of the node.
        add("203.0.113.7/32");
        soon("the address is back", "203.0.113.7:30080", "web");
        ip(&["link", "set", "eth0", "down"]);
        soon("its interface is down", "203.0.113.7:30080", "");
        ip(&["link", "set", "eth0", "up"]);
        soon("its interface is up", "203.0.113.7:30080", "web");
        assert_eq!(log_lines(&host, "WARN") + log_lines(&host, "ERROR"), 0, "{}", host.log());
        daemon.stop();
    });
}

#[test]
fn the_primary_address_stays_while_the_node_has_it() {
    sandbox::run("addresses::the_primary_address_stays_while_the_node_has_it", |sandbox| {
        let host = host(sandbox);
        let _backend = backend("web", BACKEND);
        host.serve("web.yaml", WEB);
        for address in ["203.0.113.7/24", "203.0.113.8/24"] {
            add(address);
        }
        let route = |verb, source| ip(&["route", verb, "default", "via", "203.0.113.1", "dev", "eth0", "src", source]);
        route("add", "203.0.113.8");
        let daemon = host.start();
        let now = || ["203.0.113.7:30080", "203.0.113.8:30080"].map(answers);
        assert_eq!(now(), ["", "web"], "the source of the default route");
        route("replace", "203.0.113.7");
        add("203.0.113.9/32");
        eventually("the daemon has seen the change", || log_lines(&host, "203.0.113.9 came") == 1);
        assert_eq!(now(), ["", "web"]);
        daemon.stop();
        let daemon = host.start();
        assert_eq!(now(), ["", "web"], "after a restart");
        remove("203.0.113.8/24");
        soon("the next one is primary", "203.0.113.7:30080", "web");
        ip(&["route", "delete", "default"]);
        add("203.0.113.8/24");
        // As after a link was down; the test asserted the opposite, before the daemon had seen the address.
        soon("it is primary again", "203.0.113.8:30080", "web");
        assert_eq!(now(), ["", "web"]);
        daemon.stop();
    });
}

#[test]
fn loopback_is_answered_where_it_is_asked_for() {
    sandbox::run("addresses::loopback_is_answered_where_it_is_asked_for", |sandbox| {
        let host = host(sandbox);
        let _backends = [backend("web", BACKEND), backend("web", "[2001:db8:b::11]:8080")];
        host.serve("web.yaml", WEB);
        let daemon = host.start();
        let loopback = ["127.0.0.1:30080", "[::1]:30080"];
        assert_eq!(loopback.map(|at| errno(at, Transport::Tcp)), ["ECONNREFUSED"; 2]);
        policy(&host, r#"["primary", "loopback"]"#);
        daemon.signal(Signal::SIGHUP);
        for at in loopback {
            soon("loopback is answered", at, "web");
        }
        assert_eq!(errno("127.0.0.2:30080", Transport::Tcp), "ECONNREFUSED", "not all of 127.0.0.0/8");
        policy(&host, r#"["::1"]"#);
        daemon.signal(Signal::SIGHUP);
        soon("one family is not", "127.0.0.1:30080", "");
        assert_eq!(answers("[::1]:30080"), "web");
        daemon.stop();
    });
}

#[test]
fn a_service_gives_way_to_the_node() {
    sandbox::run("addresses::a_service_gives_way_to_the_node", |sandbox| {
        const ADDRESS: &str = "198.51.100.10:80";
        let host = host(sandbox);
        let _backend = backend("service", BACKEND);
        host.serve("web.toml", &service("shop/web", &[ADDRESS], &[BACKEND]));
        host.serve("other.toml", &service("shop/other", &["198.51.100.11:80"], &[BACKEND]));
        let daemon = host.start();
        let other = Probe::start(Plan { rate: 200, ..Plan::new(socket("198.51.100.11:80"), Transport::Tcp) });
        for _ in 0..3 {
            assert_eq!(answers(ADDRESS), "service");
            add("198.51.100.10/32");
            let _own = backend("own", ADDRESS);
            soon("the node has the address", ADDRESS, "own");
            // The report follows the kernel.
            eventually("the row is refused", || frontend("198.51.100.10:80/TCP").unwrap()["status"] == "Refused");
            let row = frontend("198.51.100.10:80/TCP").unwrap();
            let error = row["error"].as_str().unwrap();
            assert!(error.starts_with("198.51.100.10 is an address of this node"), "{row}");
            assert!(error.contains("list it in datapath.own-addresses"), "{row}");
            remove("198.51.100.10/32");
            soon("the service has it again", ADDRESS, "service");
            eventually("its row too", || is_served_by("198.51.100.10:80/TCP", &["192.0.2.11:8080/TCP"]));
        }
        let tally = other.finish();
        assert_eq!(tally.failures(), 0, "{tally}, {:?}", tally.first_failure);
        let applied: Vec<String> = host.log().lines().filter(|l| l.contains("applied: ")).map(str::to_owned).collect();
        assert!(applied.iter().skip(1).all(|line| !line.contains("shop/other")), "{applied:#?}");
        host.assert_logged_times("shop/web is not served at 198.51.100.10:80/TCP: 198.51.100.10 is an address of", 3);
        host.assert_logged_times("shop/web: 198.51.100.10:80/TCP is served", 3);
        // As many for UDP.
        host.assert_logged_times(" WARN ", 6);
        assert_eq!(log_lines(&host, "ERROR"), 0, "{}", host.log());
        daemon.stop();
    });
}

/// While duplicate address detection runs, another host may have the address, and it has it if
/// detection fails; and the interfaces that kube-proxy leaves behind have addresses that are not
/// the node's.
#[test]
fn a_tentative_or_foreign_address_takes_nothing_from_a_service() {
    sandbox::run("addresses::a_tentative_or_foreign_address_takes_nothing_from_a_service", |sandbox| {
        let host = host(sandbox);
        let _backends = [backend("service", BACKEND), backend("service", "[2001:db8:b::11]:8080")];
        ip(&["link", "add", "kube-ipvs0", "type", "veth", "peer", "name", "kube-ipvs0-peer"]);
        ip(&["link", "set", "kube-ipvs0", "up"]);
        ip(&["address", "add", "198.51.100.1/32", "dev", "kube-ipvs0"]);
        host.serve("web.yaml", WEB);
        let daemon = host.start();
        assert_eq!(answers("198.51.100.1:80"), "service");
        assert!(is_served_by("198.51.100.1:80/TCP", &["192.0.2.11:8080/TCP"]));
        let before = log_lines(&host, "addresses of this node");
        ip(&["address", "add", "2001:db8:f::1/64", "dev", "eth0"]);
        assert_eq!(answers("[2001:db8:f::1]:80"), "service", "while it is tentative");
        soon_after(DETECTION, "the address is certain", "[2001:db8:f::1]:80", "");
        remove("2001:db8:f::1/64");
        soon("the address is gone", "[2001:db8:f::1]:80", "service");
        // Another host on the link has the address.
        let pod = Pod::new(0);
        pod.run(|| ip(&["address", "add", "2001:db8:f::1/64", "dev", "eth0", "nodad"]));
        ip(&["address", "add", "2001:db8:f::1/64", "dev", "pod0"]);
        eventually("detection fails", || listed("pod0").contains("dadfailed"));
        std::thread::sleep(LIMIT);
        assert_eq!(answers("[2001:db8:f::1]:80"), "service");
        let lines = log_lines(&host, "addresses of this node") - before;
        assert!((3..=5).contains(&lines), "{}", host.log());
        daemon.stop();
    });
}

/// The output of `ip address` for the interface.
fn listed(interface: &str) -> String {
    let output = sandbox::program("ip").args(["address", "show", "dev", interface]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The daemon is stopped while more events happen than its socket can buffer.
#[test]
fn lost_messages_lose_nothing() {
    sandbox::run("addresses::lost_messages_lose_nothing", |sandbox| {
        let host = host(sandbox);
        let _backend = backend("web", BACKEND);
        policy(&host, r#"["203.0.113.0/24"]"#);
        host.serve("web.yaml", WEB);
        add("203.0.113.1/32");
        let daemon = host.start();
        daemon.signal(Signal::SIGSTOP);
        let mut lines = String::new();
        for number in 0..4_000 {
            for verb in ["add", "delete"] {
                lines.push_str(&format!("address {verb} 203.0.113.{}/32 dev eth0\n", 2 + number % 250));
            }
        }
        lines.push_str("address add 203.0.113.77/32 dev eth0\naddress delete 203.0.113.1/32 dev eth0\n");
        let mut batch = sandbox::program("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        batch.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        assert!(batch.wait().unwrap().success());
        let overrun = std::fs::read_to_string("/proc/net/netlink").unwrap();
        let lost = overrun.lines().filter_map(|line| line.split_whitespace().nth(8)?.parse::<u64>().ok()).max();
        assert!(lost.unwrap_or(0) > 0, "nothing was lost:\n{overrun}");
        daemon.signal(Signal::SIGCONT);
        soon("the last address is answered", "203.0.113.77:30080", "web");
        soon("the first is not", "203.0.113.1:30080", "");
        assert_eq!(log_lines(&host, "WARN") + log_lines(&host, "ERROR"), 0, "{}", host.log());
        daemon.stop();
    });
}
