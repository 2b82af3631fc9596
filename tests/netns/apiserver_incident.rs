//! The whole outage with a Kubernetes cluster: the endpoints of the service that the node reaches its apiserver through
//! are removed, apiservers stop and start, nodelb dies and restarts, and no connection fails.

use std::thread;
use std::time::Duration;

use nodelb_apiserver::{Cluster, Patch, Replica};
use nodelb_prober::{Plan, Probe, Transport};
use serde_json::{Value, json};

use crate::cluster::{NODE, apply, cluster, configure, is_held, serve, service, slice, version};
use crate::host::{Daemon, Host, eventually, history, is_served_by, socket};
use crate::network::{Forwarder, own};
use crate::sandbox;

/// The platform's address of the apiservers; the only endpoint of both services.
pub(crate) const DIRECT: &str = "169.254.128.7:60002";
/// The cloud load balancer of the same apiservers; the only address in nodelb's configuration.
pub(crate) const BALANCER: &str = "203.0.113.10:443";

const KUBERNETES: &str = "198.51.100.1:443";
const INTRANET: &str = "198.51.100.60:443";
const NODE_PORT: u16 = 30965;
const APISERVERS: [&str; 2] = ["192.0.2.21:6443", "192.0.2.22:6443"];

/// The cluster of the incident and its platform.
struct Platform {
    cluster: Cluster,
    apiservers: Vec<Replica>,
    _direct: Forwarder,
    balancer: Forwarder,
}

impl Platform {
    fn new() -> Self {
        own("169.254.128.7/32");
        own("203.0.113.10/32");
        let cluster = cluster();
        apply(&cluster, service("kubernetes", "198.51.100.1"));
        let mut intranet = service("kubernetes-intranet", "198.51.100.60");
        intranet["spec"]["type"] = "LoadBalancer".into();
        intranet["spec"]["ports"][0]["nodePort"] = NODE_PORT.into();
        intranet["status"] = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.10", "ipMode": "VIP"}]}});
        apply(&cluster, intranet);
        let platform = Self {
            apiservers: Vec::new(),
            _direct: Forwarder::open("direct", DIRECT, &APISERVERS),
            balancer: Forwarder::open("balancer", BALANCER, &APISERVERS),
            cluster,
        };
        platform.fill("kubernetes");
        platform.fill("kubernetes-intranet");
        platform
    }

    fn start(&mut self) {
        self.apiservers = APISERVERS.map(|at| serve(&self.cluster, at)).into();
    }

    /// Closes every connection to every apiserver and accepts no new ones.
    fn stop(&mut self) {
        self.apiservers.clear();
    }

    fn fill(&self, name: &str) {
        apply(&self.cluster, slice(name, &[DIRECT]));
    }

    /// Empties the slice, as an apiserver does when it stops. Returns the details of the write that
    /// nodelb must report.
    fn empty(&self, name: &str) -> [String; 3] {
        let nothing = Patch::Merge(json!({"endpoints": null, "ports": null}));
        self.cluster.writing_as("kube-apiserver").patch("endpointslices", "default", name, &nothing).unwrap();
        [format!("default/{name}"), version(&self.cluster, "endpointslices", name), "kube-apiserver".to_owned()]
    }

    /// Writes the Service, as the cloud's controller does when it has reconnected.
    fn touch(&self, name: &str) {
        let stamp =
            Patch::Merge(json!({"metadata": {"annotations": {"touched": self.cluster.revision().to_string()}}}));
        self.cluster.writing_as("service-controller").patch("services", "default", name, &stamp).unwrap();
    }

    /// Waits until nodelb has received all earlier writes.
    fn settle(&self) {
        apply(&self.cluster, service("marker", "198.51.100.99"));
        eventually("the marker", || crate::host::frontend("198.51.100.99:443/TCP").is_some());
        self.cluster.delete("services", "default", "marker").unwrap();
        eventually("the marker's end", || crate::host::frontend("198.51.100.99:443/TCP").is_none());
    }
}

/// The frontends of the service that did not change, and the addresses that clients connect to.
const HELD: [&str; 3] = ["198.51.100.60:443/TCP", "0.0.0.0:30965/TCP", "203.0.113.10:443/TCP"];

/// Continuous traffic to everything that reaches the apiservers.
struct Clients(Vec<Probe>);

impl Clients {
    fn start() -> Self {
        let node_port = format!("{NODE}:{NODE_PORT}");
        let destinations = [KUBERNETES, INTRANET, &node_port, BALANCER];
        let plan = |at: &str| Plan { rate: 100, ..Plan::new(socket(at), Transport::TcpAsking) };
        Self(destinations.iter().map(|at| Probe::start(plan(at))).collect())
    }

    /// Panics unless every connection so far was translated and none failed.
    fn assert_unharmed(&self, when: &str) {
        for probe in &self.0 {
            let tally = probe.tally();
            assert_eq!(tally.failures(), 0, "{when}: {tally}, {:?}", tally.first_failure);
            assert!(tally.answered.keys().eq(["direct"]), "{when}: {tally}");
        }
    }

    fn finish(self) {
        eventually("enough traffic", || self.0.iter().all(|probe| probe.tally().ok() >= 500));
        self.assert_unharmed("in the end");
    }
}

fn start(host: &Host, platform: &Platform) -> Daemon {
    let url = format!("https://{BALANCER}");
    host.write("kubeconfig", &platform.cluster.kubeconfig(&[&url]).unwrap());
    configure(host, &format!("kubeconfig = {:?}\n", host.path("kubeconfig")));
    let daemon = host.start();
    eventually("the endpoint is known as an apiserver's", all_done);
    daemon
}

fn all_done() -> bool {
    let served = format!("{DIRECT}/TCP");
    HELD.iter().chain(&["198.51.100.1:443/TCP"]).all(|address| is_served_by(address, &[&served]))
}

fn assert_said(host: &Host, parts: &[String; 3]) {
    let is_said = |line: &str| line.contains("held") && parts.iter().all(|part| line.contains(part.as_str()));
    eventually(&format!("{parts:?} in the journal"), || host.log().lines().any(is_said));
}

/// The flight recorder names the object that emptied the service, its version, its writer, and the
/// held backends.
fn assert_recorded(service: &str, [object, version, writer]: &[String; 3]) {
    let rows = history(service);
    let is_it = |row: &Value| {
        row["what"] == "Held"
            && row["object"] == format!("EndpointSlice {object}")
            && row["resource_version"] == version.as_str()
            && row["writer"] == writer.as_str()
            && row["held"] == json!([format!("{DIRECT}/TCP")])
            && row["removed"] == json!([])
            && row["source"] == "kubernetes"
    };
    assert!(rows.iter().any(is_it), "{rows:#?}");
}

fn held(parts: &[String; 3]) -> [&str; 3] {
    parts.each_ref().map(String::as_str)
}

#[test]
fn no_connection_fails_while_the_apiservers_take_themselves_away() {
    sandbox::run("apiserver_incident::no_connection_fails_while_the_apiservers_take_themselves_away", |sandbox| {
        let host = Host::new(sandbox);
        let mut platform = Platform::new();
        platform.start();
        let daemon = start(&host, &platform);
        let clients = Clients::start();
        assert!(platform.balancer.forwarded() > 0, "nodelb's own connection goes to the configured address");

        let kubernetes = platform.empty("kubernetes");
        eventually("kubernetes is held", || is_held("198.51.100.1:443/TCP", &held(&kubernetes)));
        platform.touch("kubernetes-intranet");
        platform.settle();
        assert!(
            HELD.iter().all(|at| is_served_by(at, &[&format!("{DIRECT}/TCP")])),
            "the slice of the intranet has not changed"
        );
        assert_recorded("default/kubernetes", &kubernetes);
        assert_eq!(history("default/kubernetes-intranet"), [] as [Value; 0], "an annotation changes no backend");
        let intranet = platform.empty("kubernetes-intranet");
        eventually("the intranet is held", || HELD.iter().all(|address| is_held(address, &held(&intranet))));
        platform.touch("kubernetes-intranet");
        platform.settle();
        clients.assert_unharmed("both are empty");

        platform.stop();
        thread::sleep(Duration::from_millis(500));
        daemon.kill();
        clients.assert_unharmed("no apiserver runs");
        let mut daemon = host.spawn(None);
        eventually("the API, without an apiserver", || crate::host::get("/frontends").is_some());
        thread::sleep(Duration::from_secs(1));
        clients.assert_unharmed("restarted without an apiserver");

        platform.start();
        assert!(daemon.wait_ready(), "{}", host.log());
        eventually("held after the restart", || HELD.iter().all(|address| is_held(address, &held(&intranet))));
        daemon.kill();
        let daemon = host.start();
        clients.assert_unharmed("restarted while the slices are empty");
        assert_recorded("default/kubernetes", &kubernetes);
        assert_recorded("default/kubernetes-intranet", &intranet);
        eventually("kubernetes is held again", || is_held("198.51.100.1:443/TCP", &held(&kubernetes)));
        for parts in [&kubernetes, &intranet] {
            assert_said(&host, parts);
        }

        platform.fill("kubernetes");
        platform.fill("kubernetes-intranet");
        eventually("all is as before", all_done);
        eventually("the end of the hold", || {
            history("default/kubernetes").last().is_some_and(|row| row["what"] == "Released")
        });
        daemon.stop();
        clients.finish();
    });
}

#[test]
fn a_reboot_without_an_apiserver_starts_from_the_state_directory() {
    sandbox::run("apiserver_incident::a_reboot_without_an_apiserver_starts_from_the_state_directory", |sandbox| {
        let host = Host::new(sandbox);
        let mut platform = Platform::new();
        platform.start();
        let daemon = start(&host, &platform);
        let kubernetes = platform.empty("kubernetes");
        let intranet = platform.empty("kubernetes-intranet");
        eventually("both are held", || {
            is_held("198.51.100.1:443/TCP", &held(&kubernetes)) && is_held(HELD[0], &held(&intranet))
        });
        daemon.stop();
        platform.stop();
        host.cleanup();
        let mut daemon = host.spawn(None);
        eventually("served from the state directory", || {
            let leads_on = |row: Value| row["backends"] == json!([format!("{DIRECT}/TCP")]);
            HELD.iter().chain(&["198.51.100.1:443/TCP"]).all(|at| crate::host::frontend(at).is_some_and(leads_on))
        });
        let clients = Clients::start();
        eventually("traffic", || clients.0.iter().all(|probe| probe.tally().ok() >= 100));
        platform.start();
        assert!(daemon.wait_ready(), "{}", host.log());
        eventually("held as before", || {
            is_held("198.51.100.1:443/TCP", &held(&kubernetes))
                && HELD.iter().all(|address| is_held(address, &held(&intranet)))
        });
        platform.fill("kubernetes");
        platform.fill("kubernetes-intranet");
        eventually("all is as before", all_done);
        clients.finish();
    });
}

#[test]
fn emptying_test_leaves_test_extended_alone() {
    sandbox::run("apiserver_incident::emptying_test_leaves_test_extended_alone", |sandbox| {
        let host = Host::new(sandbox);
        let mut platform = Platform::new();
        platform.start();
        let _backend = crate::host::backend("1", "192.0.2.80:80");
        for (name, address) in [("test", "198.51.100.70"), ("test-extended", "198.51.100.71")] {
            apply(&platform.cluster, service(name, address));
            apply(&platform.cluster, slice(name, &["192.0.2.80:80"]));
        }
        let _daemon = start(&host, &platform);
        let probe = Probe::start(Plan { rate: 100, ..Plan::new(socket("198.51.100.71:443"), Transport::Tcp) });
        let nothing = Patch::Merge(json!({"endpoints": []}));
        for (emptied, other) in [("test", "test-extended"), ("test-extended", "test")] {
            if emptied == "test-extended" {
                assert_eq!(probe.tally().failures(), 0, "{}", probe.tally());
            }
            platform.cluster.patch("endpointslices", "default", emptied, &nothing).unwrap();
            platform.touch(other);
            platform.settle();
            let [emptied_at, other_at] =
                [emptied, other].map(|name| if name == "test" { "198.51.100.70" } else { "198.51.100.71" });
            assert!(is_served_by(&format!("{emptied_at}:443/TCP"), &[]), "{emptied}");
            assert!(is_served_by(&format!("{other_at}:443/TCP"), &["192.0.2.80:80/TCP"]), "{other}");
            assert_eq!(crate::host::answering(&format!("{other_at}:443")), ["1"]);
            apply(&platform.cluster, slice(emptied, &["192.0.2.80:80"]));
            platform.settle();
        }
    });
}
