//! NodePorts are reserved for services: nodelb refuses a bind to one, and reports processes that
//! already have one.

use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream, UdpSocket};

use nodelb_prober::Transport;

use crate::cluster::{NODE, have_address};
use crate::host::{Host, answering, backend, connect, eventually, frontend, is_served_by};
use crate::pod::Pod;
use crate::sandbox;

const NODEPORT: &str = "0.0.0.0:30080/TCP";

/// A node with one address that accepts NodePorts; with these lines in `[datapath]`.
fn node(host: &Host, datapath: &str) {
    have_address();
    host.configure(&format!("{datapath}\n[node]\nnodeport-addresses = [{NODE:?}]\n"));
}

fn is_refused(address: &str) -> bool {
    let kinds = [TcpListener::bind(address).map(drop), UdpSocket::bind(address).map(drop)];
    let refused = kinds.map(|bound| match bound {
        Ok(()) => false,
        Err(error) if error.kind() == ErrorKind::AddrInUse => true,
        Err(error) => panic!("binding {address}: {error}"),
    });
    assert_eq!(refused[0], refused[1], "{address}: TCP as UDP");
    refused[0]
}

/// A service with this NodePort over TCP and UDP, and the backend 192.0.2.11:8080.
fn nodeport(name: &str, port: u16) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec:
  type: NodePort
  clusterIP: 198.51.100.{}
  clusterIPs: [198.51.100.{}]
  ports:
  - {{name: a, port: 80, nodePort: {port}, protocol: TCP}}
  - {{name: b, port: 80, nodePort: {port}, protocol: UDP}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: a, port: 8080, protocol: TCP}}, {{name: b, port: 8080, protocol: UDP}}]
endpoints: [{{addresses: [192.0.2.11]}}]
",
        port % 100,
        port % 100,
    )
}

/// The error of the NodePort in `/frontends`.
fn complaint() -> Option<String> {
    frontend(NODEPORT)?["error"].as_str().map(ToOwned::to_owned)
}

#[test]
fn a_served_nodeport_cannot_be_bound() {
    sandbox::run("nodeports::a_served_nodeport_cannot_be_bound", |sandbox| {
        let host = Host::new(sandbox);
        node(&host, "");
        let _backend = backend("1", "192.0.2.11:8080");
        host.serve("a.yaml", &nodeport("web", 30_080));
        let pod = Pod::new(1);
        assert!(!is_refused("0.0.0.0:30080"), "no service has it yet");
        let daemon = host.start();
        let expect_protected = |when: &str| {
            for address in ["0.0.0.0:30080", "[::]:30080", "192.0.2.1:30080"] {
                assert!(is_refused(address), "{address} {when}");
            }
            for address in ["127.0.0.1:30080", "[::1]:30080", "192.0.2.2:30080", "0.0.0.0:30081", "0.0.0.0:0"] {
                assert!(!is_refused(address), "{address} {when}");
            }
            assert!(!pod.run(|| is_refused("0.0.0.0:30080")), "in a pod, {when}");
            assert_eq!(answering("192.0.2.1:30080"), ["1"], "{when}");
        };
        expect_protected("while it runs");
        daemon.kill();
        expect_protected("after kill -9");
        let daemon = host.start();
        expect_protected("after a restart");
        host.withdraw("a.yaml");
        eventually("it is free with its service gone", || !is_refused("0.0.0.0:30080"));
        // The row follows the maps.
        eventually("its row is gone", || frontend(NODEPORT).is_none());
        host.serve("a.yaml", &nodeport("web", 30_080));
        eventually("it is served again", || is_served_by(NODEPORT, &["192.0.2.11:8080/TCP"]));
        daemon.stop();
        expect_protected("after the end");
        host.cleanup();
        assert!(!is_refused("0.0.0.0:30080"), "after cleanup");
    });
}

#[test]
fn one_that_a_process_has_is_reported() {
    sandbox::run("nodeports::one_that_a_process_has_is_reported", |sandbox| {
        let host = Host::new(sandbox);
        node(&host, "");
        let _backend = backend("1", "192.0.2.11:8080");
        let thief = TcpListener::bind("0.0.0.0:30080").unwrap();
        host.serve("a.yaml", &nodeport("web", 30_080));
        let daemon = host.start();
        eventually("it is reported", || complaint().is_some());
        let said = complaint().unwrap();
        assert!(said.starts_with("a process of uid 0 has bound 0.0.0.0:30080/TCP: "), "{said}");
        assert!(is_served_by(NODEPORT, &["192.0.2.11:8080/TCP"]), "it is served all the same");
        assert_eq!(answering("192.0.2.1:30080"), ["1"], "clients on the node reach the service");
        host.assert_logged_times("has bound 0.0.0.0:30080/TCP", 1);
        assert!(frontend("0.0.0.0:30080/UDP").is_some_and(|row| row["error"].is_null()), "TCP, not UDP");

        // Connections from outside the node reach the process.
        let pod = Pod::new(1);
        let outside = pod.run(|| TcpStream::connect("203.0.113.133:30080").is_ok());
        assert!(outside && thief.accept().is_ok(), "what the report warns of");

        drop(thief);
        host.serve("b.yaml", &nodeport("other", 30_090));
        eventually("it is found to be over", || complaint().is_none());
        host.assert_logged("the process has released it");
        assert!(is_refused("0.0.0.0:30080"), "and cannot come back");
        daemon.stop();
    });
}

#[test]
fn protection_can_be_switched_off() {
    sandbox::run("nodeports::protection_can_be_switched_off", |sandbox| {
        let host = Host::new(sandbox);
        node(&host, "protect-nodeports = false");
        let _backend = backend("1", "192.0.2.11:8080");
        host.serve("a.yaml", &nodeport("web", 30_080));
        let daemon = host.start();
        let server = UdpSocket::bind("[::]:30080").unwrap();
        let thief = TcpListener::bind("0.0.0.0:30080").unwrap();
        host.serve("b.yaml", &nodeport("other", 30_090));
        eventually("it is reported all the same", || complaint().is_some());
        let udp = frontend("0.0.0.0:30080/UDP").unwrap()["error"].to_string();
        assert!(udp.contains("has bound [::]:30080/UDP"), "{udp}");
        node(&host, "protect-nodeports = true");
        daemon.stop();
        let _daemon = host.start();
        eventually("they keep what they have", || complaint().is_some());
        drop((thief, server));
        assert!(is_refused("0.0.0.0:30080"), "and no process gets it after them");
        assert_eq!(connect("192.0.2.1:30080", Transport::Udp, 5).failures(), 0);
    });
}

#[test]
fn says_that_the_kernel_hands_out_nodeports() {
    sandbox::run("nodeports::says_that_the_kernel_hands_out_nodeports", |sandbox| {
        let host = Host::new(sandbox);
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", "15000 60999").unwrap();
        host.start().stop();
        let warning = "includes NodePorts 30000 to 32767";
        host.assert_logged_times(warning, 1);
        fs::write("/proc/sys/net/ipv4/ip_local_reserved_ports", "30000-32767").unwrap();
        host.start().stop();
        host.assert_logged_times(warning, 1);
    });
}

#[test]
fn an_overlap_that_comes_while_it_runs_is_logged_and_refuses_no_automatic_bind() {
    sandbox::run("nodeports::an_overlap_that_comes_while_it_runs_is_logged_and_refuses_no_automatic_bind", |sandbox| {
        let host = Host::new(sandbox);
        node(&host, "");
        let _backend = backend("1", "192.0.2.11:8080");
        host.serve("a.yaml", &nodeport("web", 30_080));
        let _daemon = host.start();
        assert!(!host.log().contains("the ephemeral port range of the kernel"), "{}", host.log());
        // A bind to port 0 gets 30080 or 30082 from this range.
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", "30079 30082").unwrap();
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
            assert!((0..50).all(|_| !is_refused(address)), "{address}");
        }
        assert!(is_refused("0.0.0.0:30080"), "by its number");
        // The listener and the clients of this test need other ports.
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", "15000 60999").unwrap();
        host.serve("b.yaml", &nodeport("other", 30_090));
        let warning = "includes NodePorts 30000 to 32767";
        eventually("it is logged when nodelb looks again", || host.log().contains(warning));
    });
}

/// The NodePort equals the backend's own port, which the pod has to bind again after each restart.
#[test]
fn a_hostnetwork_backend_can_bind_the_nodeport_of_its_service() {
    sandbox::run("nodeports::a_hostnetwork_backend_can_bind_the_nodeport_of_its_service", |sandbox| {
        let host = Host::new(sandbox);
        node(&host, "");
        let service = |name, ready| {
            let to = format!("addresses: [{NODE}], conditions: {{ready: {ready}}}");
            nodeport(name, 30_080).replace("port: 8080", "port: 30080").replace("addresses: [192.0.2.11]", &to)
        };
        host.serve("a.yaml", &service("web", true));
        let _daemon = host.start();
        for address in ["0.0.0.0:30080", "[::]:30080", "192.0.2.1:30080"] {
            assert!(!is_refused(address), "{address}");
        }
        host.serve("a.yaml", &service("web", false));
        eventually("it is not ready", || is_served_by(NODEPORT, &[]));
        assert!(!is_refused("0.0.0.0:30080"), "it must listen before it is ready");
        let _pod = backend("1", "192.0.2.1:30080");
        host.serve("b.yaml", &nodeport("other", 30_090));
        host.serve("a.yaml", &service("web", true));
        eventually("both are served", || is_served_by("0.0.0.0:30090/TCP", &["192.0.2.11:8080/TCP"]));
        eventually("it is ready", || is_served_by(NODEPORT, &["192.0.2.1:30080/TCP"]));
        assert_eq!(answering("192.0.2.1:30080"), ["1"]);
        assert_eq!(complaint(), None, "it is no other process");
        host.serve("a.yaml", &nodeport("web", 30_080));
        eventually("its backend is elsewhere", || is_served_by(NODEPORT, &["192.0.2.11:8080/TCP"]));
        assert!(is_refused("192.0.2.1:30080"), "and the NodePort is kept free again");
    });
}

#[test]
fn a_nodeport_that_is_answered_nowhere_can_be_bound() {
    sandbox::run("nodeports::a_nodeport_that_is_answered_nowhere_can_be_bound", |sandbox| {
        let host = Host::new(sandbox);
        have_address();
        host.configure("\n[node]\nnodeport-addresses = []\n");
        host.serve("a.yaml", &nodeport("web", 30_080));
        let daemon = host.start();
        for address in ["0.0.0.0:30080", "[::]:30080", "192.0.2.1:30080"] {
            assert!(!is_refused(address), "{address}");
        }
        daemon.stop();
        node(&host, "");
        let _daemon = host.start();
        assert!(is_refused("0.0.0.0:30080"), "answered on an address, it is kept free");
    });
}

/// A Service of any user must not take the admin API from its clients, nor its port from the next
/// start.
#[test]
fn a_nodeport_on_the_admin_port_is_refused() {
    sandbox::run("nodeports::a_nodeport_on_the_admin_port_is_refused", |sandbox| {
        let host = Host::new(sandbox);
        have_address();
        host.configure("nodeport-range = \"1024-32767\"\n[node]\nnodeport-addresses = [\"loopback\", \"192.0.2.1\"]\n");
        host.serve("a.yaml", &nodeport("web", 9890));
        for _ in 0..2 {
            let daemon = host.start();
            let row = frontend("0.0.0.0:9890/TCP").unwrap();
            let error = row["error"].as_str().unwrap_or_default();
            assert!(error.contains("nodelb itself listens on port 9890, as admin.listen specifies"), "{row}");
            daemon.stop();
        }
    });
}

/// The NodePort is left in the maps by a nodelb that had its admin API elsewhere: nothing but the programs that keep it free
/// is in the way of the listener.
#[test]
fn an_earlier_nodeport_on_the_admin_port_does_not_keep_the_admin_api_closed() {
    sandbox::run("nodeports::an_earlier_nodeport_on_the_admin_port_does_not_keep_the_admin_api_closed", |sandbox| {
        let host = Host::new(sandbox);
        have_address();
        let configure = |listen: &str| {
            host.configure(&format!(
                "nodeport-range = \"1024-32767\"\n[node]\nnodeport-addresses = [\"loopback\", \
                 \"192.0.2.1\"]\n[admin]\nlisten = [{listen:?}]\n"
            ));
        };
        configure("127.0.0.1:9891");
        host.serve("a.yaml", &nodeport("web", 9890));
        host.start().stop();
        assert!(is_refused("127.0.0.1:9890"), "the pins keep it free");
        configure("127.0.0.1:9890");
        let daemon = host.start();
        assert!(!host.log().contains("cannot open"), "{}", host.log());
        let error = frontend("0.0.0.0:9890/TCP").unwrap()["error"].to_string();
        assert!(error.contains("nodelb itself listens on port 9890"), "{error}");
        assert!(!host.log().contains("has bound"), "nodelb is no other process: {}", host.log());
        daemon.stop();
    });
}
