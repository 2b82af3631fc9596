//! The node of clients outside: a service of each kind, and how ways are broken and restored.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nodelb_apiserver::{Cluster, Replica};
use nodelb_prober::{Backend, Transport};
use serde_json::{Value, json};

use super::outside_clients::Clock;
use super::outside_kinds::{Done, Fault, Kind, NodeFault, What};
use super::outside_net::{ENDS, NODE, Net, POD, UNWRAPPING, set_address, set_firewall, set_unwrapping};
use crate::cluster::{apply, cluster, serve_on};
use crate::host::{Daemon, Host, socket};
use crate::lab::Place;
use crate::outside_network::nft;
use crate::seeded::Random;

const APISERVER: &str = "127.0.0.1:6443";

pub(super) struct Node<'a> {
    net: &'a Net,
    host: &'a Host,
    clock: Clock,
    cluster: Cluster,
    _replica: Replica,
    _backends: Vec<Backend>,
    daemon: Option<Daemon>,
    faults: [Fault; Kind::ALL.len()],
    fault: NodeFault,
    pub(super) done: Vec<Done>,
}

impl<'a> Node<'a> {
    pub(super) fn new(host: &'a Host, net: &'a Net, clock: Clock) -> Self {
        let cluster = cluster();
        let listener = net.node.run(|| TcpListener::bind(APISERVER).unwrap());
        let replica = serve_on(&cluster, listener, &["h2", "http/1.1"]);
        host.write("kubeconfig", &cluster.kubeconfig(&[&format!("https://{APISERVER}")]).unwrap());
        prepare(net, true);
        let faults = [Fault::None; Kind::ALL.len()];
        let mut node = Self {
            net,
            host,
            clock,
            cluster,
            _replica: replica,
            _backends: backends(net),
            daemon: None,
            faults,
            fault: NodeFault::None,
            done: Vec::new(),
        };
        node.configure("");
        Kind::ALL.into_iter().for_each(|kind| node.write(kind));
        node.start();
        node
    }

    /// Writes the configuration, with these lines in `[kubernetes]`. The small maps are swept every two seconds.
    fn configure(&self, kubernetes: &str) {
        self.host.configure(&format!(
            "[node]\nname = \"node-a\"\nnodeport-addresses = [\"{}/32\"]\n[packets]\nmode = \"auto\"\ndirect-return = true\n\
             max-connections = 4096\nmax-handshakes = 4096\n[kubernetes]\nkubeconfig = {:?}\nhealthz-addresses = []\nnode-object = false\n{kubernetes}\
             [[kubernetes.apiserver]]\naddress = \"{APISERVER}\"\ntls-server-name = \"kubernetes\"\n",
            NODE[0],
            self.host.path("kubeconfig")
        ));
    }

    fn start(&mut self) {
        self.daemon = Some(self.net.node.run(|| self.host.start()));
    }

    /// Describes the service as its fault defines.
    fn write(&self, kind: Kind) {
        let fault = self.faults[usize::from(kind.number())];
        if kind.is_of_kubernetes() {
            return self.write_objects(kind, fault);
        }
        let mut backends = kind.backends();
        let loopback = |family: &str| format!("{family}:{}", kind.port());
        match fault {
            Fault::Empty => backends.clear(),
            Fault::Loopback if matches!(kind, Kind::There | Kind::Pod) => {
                backends = ["127.0.0.1", "[::1]"].map(loopback).into();
            }
            Fault::Loopback => backends = vec![loopback("127.0.0.1")],
            Fault::OneLoopback => backends[1] = loopback("127.0.0.1"),
            _ => {}
        }
        let forward = match kind {
            Kind::Direct => "forward = \"direct\"\n",
            Kind::Tunnel => "forward = \"tunnel\"\n",
            _ => "",
        };
        let check = match kind {
            Kind::Checked => {
                "[service.health-check]\ntype = \"tcp\"\ninterval = \"500ms\"\ntimeout = \"400ms\"\nrise = 2\nfall = 2\n"
            }
            _ => "",
        };
        let frontends = kind.addresses().into_iter().map(|address| format!("{address}/{}", kind.protocol()));
        let frontends: Vec<String> = frontends.collect();
        self.host.serve(
            &format!("{}.toml", kind.short()),
            &format!(
                "[[service]]\nname = {:?}\noutside = true\nfrontends = {frontends:?}\nbackends = {backends:?}\n{forward}{check}",
                kind.name()
            ),
        );
    }

    fn write_objects(&self, kind: Kind, fault: Fault) {
        let (name, number) = (kind.short(), kind.number());
        let policy = if kind == Kind::Local { "Local" } else { "Cluster" };
        apply(
            &self.cluster,
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
                "spec": {"type": "LoadBalancer", "clusterIP": format!("198.51.100.{}", 120 + number),
                    "clusterIPs": [format!("198.51.100.{}", 120 + number)], "externalTrafficPolicy": policy,
                    "ports": [{"port": 80, "nodePort": 30_100 + number, "protocol": "TCP"}]},
                "status": {"loadBalancer": {"ingress": [{"ip": kind.host()}]}},
            }),
        );
        let endpoint = |at: &String| {
            let address = at.rsplit_once(':').unwrap().0;
            let node = if address == POD[0] && fault != Fault::Elsewhere { "node-a" } else { "node-b" };
            json!({"addresses": [address], "nodeName": node, "conditions": {"ready": fault != Fault::NotReady}})
        };
        let mut endpoints: Vec<Value> = kind.backends().iter().map(endpoint).collect();
        if fault == Fault::EmptySlice {
            endpoints.clear();
        }
        let mut labels = json!({"kubernetes.io/service-name": name});
        if fault == Fault::Ignored {
            labels["service.kubernetes.io/headless"] = "".into();
        }
        apply(
            &self.cluster,
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": name, "namespace": "default", "labels": labels},
                "endpoints": endpoints, "ports": [{"name": "", "port": kind.port(), "protocol": "TCP"}],
            }),
        );
    }

    /// Lets something else happen to each service and to the node, or nothing.
    pub(super) fn change(&mut self, random: &mut Random) {
        let mut pick = |limit: usize| usize::try_from(random.below(limit as u64)).unwrap();
        // What happens to the node hides what happens to services: in a third of all cases, it is nothing.
        let node = NodeFault::ALL.get(pick(NodeFault::ALL.len() + 4)).copied().unwrap_or(NodeFault::None);
        let faults = Kind::ALL.map(|kind| {
            let faults = kind.faults();
            faults.get(pick(faults.len() + 2)).copied().unwrap_or(Fault::None)
        });
        let pauses = Kind::ALL.map(|_| Duration::from_millis(pick(150) as u64));
        self.set_node(NodeFault::None, Duration::ZERO);
        for ((kind, fault), pause) in Kind::ALL.into_iter().zip(faults).zip(pauses) {
            self.set(kind, fault);
            thread::sleep(pause);
        }
        self.set_node(node, Duration::from_millis(pick(2_000) as u64));
    }

    /// Ends all faults.
    pub(super) fn repair(&mut self) {
        self.set_node(NodeFault::None, Duration::ZERO);
        Kind::ALL.into_iter().for_each(|kind| self.set(kind, Fault::None));
    }

    fn set(&mut self, kind: Kind, fault: Fault) {
        let before = std::mem::replace(&mut self.faults[usize::from(kind.number())], fault);
        if before == fault {
            return;
        }
        let from = self.clock.now();
        self.set_ways(kind, before, true);
        self.set_ways(kind, fault, false);
        self.write(kind);
        self.done.push(Done { from, until: self.clock.now(), what: What::Service(kind, fault) });
    }

    /// Breaks what is outside of nodelb, or restores it.
    fn set_ways(&self, kind: Kind, fault: Fault, is_intact: bool) {
        let Net { node, pod, ends, .. } = self.net;
        let all: Vec<_> = match kind {
            Kind::Pod | Kind::Local => vec![pod],
            Kind::Here => vec![node],
            Kind::Mixed | Kind::NodePort => vec![pod, &ends[0]],
            _ => ends.iter().collect(),
        };
        let broken = match fault {
            Fault::OneDrops | Fault::OneUnprepared => &all[1..],
            Fault::AllDrop | Fault::Unprepared => &all[..],
            _ => return,
        };
        for place in broken {
            match (fault, kind) {
                (Fault::OneDrops | Fault::AllDrop, _) => set_firewall(place, kind.port(), !is_intact),
                (_, Kind::Direct) => set_address(place, &kind.host(), is_intact),
                _ => {
                    let end = usize::from(std::ptr::eq(*place, &ends[1]));
                    set_unwrapping(place, UNWRAPPING[end], is_intact);
                }
            }
        }
    }

    fn set_node(&mut self, fault: NodeFault, pause: Duration) {
        let before = std::mem::replace(&mut self.fault, fault);
        if before == fault && fault == NodeFault::None {
            return;
        }
        let from = self.clock.now();
        match before {
            NodeFault::DropsForwarded => self.net.node.run(|| nft("delete table inet firewall\n")),
            NodeFault::ForwardsNothing => self.net.node.set("net/ipv4/ip_forward", "1"),
            NodeFault::UplinkDown | NodeFault::UplinkWithoutAddress => self.net.connect(),
            NodeFault::Proxy => {
                self.net.node.run(|| nft("delete table ip kube-proxy\n"));
                self.signal(Signal::SIGHUP);
            }
            NodeFault::Misspelt => {
                self.configure("");
                self.restart(Signal::SIGTERM, pause);
            }
            NodeFault::None | NodeFault::Killed | NodeFault::Stopped => {}
        }
        match fault {
            NodeFault::None => {}
            NodeFault::DropsForwarded => {
                let rules =
                    "table inet firewall { chain FORWARD { type filter hook forward priority 0; policy drop; }; }\n";
                self.net.node.run(|| nft(rules));
            }
            NodeFault::ForwardsNothing => self.net.node.set("net/ipv4/ip_forward", "0"),
            NodeFault::UplinkDown => self.net.node.ip("link set eth0 down"),
            NodeFault::UplinkWithoutAddress => self.net.strip(),
            NodeFault::Proxy => {
                let chain = "chain services { type nat hook prerouting priority -100; counter; }";
                self.net.node.run(|| nft(&format!("table ip kube-proxy {{ {chain}; }}\n")));
                // It searches at once.
                self.signal(Signal::SIGHUP);
            }
            NodeFault::Killed => self.restart(Signal::SIGKILL, pause),
            NodeFault::Stopped => self.restart(Signal::SIGTERM, pause),
            NodeFault::Misspelt => {
                self.configure("namespaces = [\"defualt\"]\n");
                self.restart(Signal::SIGTERM, pause);
            }
        }
        self.done.push(Done { from, until: self.clock.now(), what: What::Node(fault) });
    }

    fn signal(&self, signal: Signal) {
        self.daemon.as_ref().unwrap().signal(signal);
    }

    fn restart(&mut self, signal: Signal, pause: Duration) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.signal(signal);
        daemon.wait();
        thread::sleep(pause);
        self.start();
    }

    pub(super) fn finish(mut self) {
        // On a busy machine, the daemon does not end in time, and says so.
        let _ = self.daemon.take().unwrap().terminate();
        self.net.node.run(|| self.host.cleanup());
        prepare(self.net, false);
        fs::remove_dir_all(self.host.path("state")).unwrap();
        for file in fs::read_dir(self.host.path("services.d")).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
    }
}

/// Lets the hosts with backends take packets of services with direct return, or not.
fn prepare(net: &Net, is_intact: bool) {
    for (end, unwrapping) in net.ends.iter().zip(UNWRAPPING) {
        set_address(end, &Kind::Direct.host(), is_intact);
        set_address(end, &Kind::Tunnel.host(), is_intact);
        set_unwrapping(end, unwrapping, is_intact);
    }
}

/// The backends of all services, which run all the time.
fn backends(net: &Net) -> Vec<Backend> {
    let mut started = Vec::new();
    let mut start = |place: &Place, name: &str, listen: Vec<(Transport, SocketAddr)>| {
        started.push(place.run(|| Backend::start(name, &listen)).unwrap());
    };
    let others: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| !matches!(kind, Kind::Direct | Kind::Tunnel)).collect();
    let of = |addresses: &[&str]| -> Vec<(Transport, SocketAddr)> {
        let backends =
            |kind: &Kind| -> Vec<_> { kind.backends().iter().map(|at| (kind.transport(), socket(at))).collect() };
        let all = others.iter().flat_map(backends);
        all.filter(|(_, at)| addresses.contains(&&*at.ip().to_string())).collect()
    };
    start(&net.pod, "pod", of(&POD));
    start(&net.node, "node", of(&NODE));
    for (place, addresses) in net.ends.iter().zip(ENDS) {
        let own = [Kind::Direct, Kind::Tunnel].into_iter().flat_map(Kind::addresses);
        let own = own.map(|at| (Transport::Tcp, socket(&at)));
        start(place, addresses[0], of(&addresses).into_iter().chain(own).collect());
    }
    started
}
