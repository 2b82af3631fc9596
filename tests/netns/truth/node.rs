//! The node of a round: its services, what happens to each, and what happens to all.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nodelb_apiserver::{Cluster, Replica};
use nodelb_prober::{Backend, Transport};
use serde_json::{Value, json};

use super::observer::now;
use crate::cluster::{apply, cluster, serve};
use crate::host::{Daemon, Host, socket};
use crate::lab::{Lab, POD_A1, POD_B};
use crate::network::ip;
use crate::seeded::Random;
use crate::unbound::Unbound;

const SERVER: &str = "192.0.2.53";
const APISERVER: &str = "192.0.2.6:6443";
const QUICK: &str = "type = \"tcp\"\ninterval = \"100ms\"\ntimeout = \"100ms\"\nrise = 1\nfall = 1\n";

/// Where a service comes from, and thus what happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Backends with health checks die and return.
    Checked,
    /// Its file changes.
    File,
    /// Its backends have a DNS name.
    Named,
    /// It is an object of Kubernetes.
    Object,
    /// The same, with the policy Local for clients outside.
    Local,
}

impl Kind {
    pub(super) fn of(number: usize) -> Self {
        [Self::Checked, Self::File, Self::Named, Self::Object, Self::Local][number % 5]
    }
}

/// What is done to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Everything is as at first.
    None,
    /// One of two backends is dead.
    OneDead,
    AllDead,
    /// The file lists no backends.
    EmptyList,
    FileRemoved,
    /// The file cannot be read.
    SyntaxError,
    /// Another file claims the same address.
    Rival,
    /// The address is one of the node.
    OwnAddress,
    NoSuchName,
    /// The slice has no endpoints.
    EmptySlice,
    /// No endpoint is ready.
    NotReady,
    /// The Service is deleted.
    Deleted,
    /// The only endpoint is on the other node.
    Elsewhere,
}

impl Fault {
    fn all(kind: Kind) -> &'static [Self] {
        match kind {
            Kind::Checked => &[Self::None, Self::OneDead, Self::AllDead],
            Kind::File => {
                &[Self::None, Self::EmptyList, Self::FileRemoved, Self::SyntaxError, Self::Rival, Self::OwnAddress]
            }
            Kind::Named => &[Self::None, Self::NoSuchName],
            Kind::Object => &[Self::None, Self::EmptySlice, Self::NotReady, Self::Deleted],
            Kind::Local => &[Self::None, Self::EmptySlice, Self::Elsewhere],
        }
    }

    /// A word of the event that reports it.
    pub(super) fn cause(self, number: usize) -> String {
        match self {
            Self::None | Self::SyntaxError | Self::Rival => String::new(),
            Self::OneDead | Self::AllDead => "health check".into(),
            Self::EmptyList | Self::FileRemoved => format!("t{number}.toml"),
            Self::OwnAddress => "address of this node".into(),
            Self::NoSuchName => format!("t{number}.example"),
            Self::EmptySlice | Self::NotReady | Self::Elsewhere => format!("EndpointSlice default/t{number}"),
            Self::Deleted => format!("Service default/t{number}"),
        }
    }
}

/// The name of a service of this number.
pub(super) fn name(number: usize) -> String {
    match Kind::of(number) {
        Kind::Object | Kind::Local => format!("default/t{number}"),
        _ => format!("truth/t{number}"),
    }
}

/// The address that clients connect to.
pub(super) fn address(number: usize) -> String {
    format!("{}:80", host_of(number))
}

fn host_of(number: usize) -> String {
    format!("198.51.100.{}", 20 + number)
}

fn port(number: usize) -> usize {
    8_100 + number
}

pub(super) struct Node<'a> {
    host: &'a Host,
    lab: &'a Lab,
    cluster: Cluster,
    replica: Option<Replica>,
    unbound: Unbound,
    daemon: Option<Daemon>,
    config: String,
    backends: BTreeMap<(usize, bool), Backend>,
    pub(super) faults: Vec<Fault>,
    /// When each fault began.
    pub(super) done: Vec<(u64, usize, Fault)>,
    /// Whether the files of the checked services are invalid, since a restart.
    is_invalid: bool,
    /// The times without a daemon, each up to its readiness and, on a busy machine, a little longer.
    pub(super) dead: Vec<(u64, u64)>,
}

impl<'a> Node<'a> {
    pub(super) fn new(host: &'a Host, lab: &'a Lab, count: usize) -> Self {
        host.write("kubeconfig", "");
        let unbound = Unbound::start(host, SERVER, "  local-zone: \"example.\" static\n");
        let cluster = cluster();
        let replica = Some(serve(&cluster, APISERVER));
        host.write("kubeconfig", &cluster.kubeconfig(&[&format!("https://{APISERVER}")]).unwrap());
        let config = format!(
            "max-frontends = 256\n[node]\nname = \"node-a\"\n[packets]\nmode = \"on\"\n[dns]\nservers = [\"{SERVER}:53\"]\n\
             max-ttl = \"1s\"\nhold = \"2s\"\n[kubernetes]\nkubeconfig = {:?}\nhealthz-addresses = []\n\
             [[kubernetes.apiserver]]\naddress = \"{APISERVER}\"\ntls-server-name = \"kubernetes\"\n",
            host.path("kubeconfig")
        );
        host.configure(&config);
        let (backends, faults, done) = (BTreeMap::new(), vec![Fault::None; count], Vec::new());
        let (is_invalid, dead) = (false, Vec::new());
        let mut node = Self {
            host,
            lab,
            cluster,
            replica,
            unbound,
            daemon: None,
            config,
            backends,
            faults,
            done,
            is_invalid,
            dead,
        };
        for number in 0..count {
            node.revive(number, true);
            node.revive(number, false);
            node.write(number);
        }
        node.daemon = Some(host.start());
        node
    }

    /// Starts the backend on this node, or that on the other one.
    fn revive(&mut self, number: usize, is_here: bool) {
        let (pod, addresses) = if is_here { (&self.lab.pod_a1, POD_A1) } else { (&self.lab.pod_b, POD_B) };
        let at = socket(&format!("{}:{}", addresses[0], port(number)));
        let start = || pod.run(|| Backend::start(if is_here { "a1" } else { "b" }, &[(Transport::Tcp, at)]).unwrap());
        self.backends.entry((number, is_here)).or_insert_with(start);
    }

    /// Describes the service as its fault defines.
    fn write(&mut self, number: usize) {
        let (file, fault) = (format!("t{number}.toml"), self.faults[number]);
        let [here, there] = [POD_A1, POD_B].map(|pod| format!("{}:{}", pod[0], port(number)));
        let head =
            format!("[[service]]\nname = {:?}\nfrontends = [{:?}]\noutside = true\n", name(number), address(number));
        match Kind::of(number) {
            Kind::Checked => {
                let end = if self.is_invalid { "no-such-key = 1\n" } else { "" };
                let text = format!("{head}backends = [{here:?}, {there:?}]\n[service.health-check]\n{QUICK}{end}");
                self.host.serve(&file, &text);
            }
            Kind::File if fault == Fault::FileRemoved => self.host.withdraw(&file),
            Kind::File if fault == Fault::SyntaxError => self.host.serve(&file, "[[service]\n"),
            Kind::File if fault == Fault::EmptyList => self.host.serve(&file, &format!("{head}backends = []\n")),
            Kind::File => self.host.serve(&file, &format!("{head}backends = [{here:?}]\n")),
            Kind::Named => {
                let at = format!("{}:{}", format_args!("t{number}.example"), port(number));
                self.host.serve(&file, &format!("{head}backends = [{at:?}]\n"));
                let record = format!("t{number}.example. 1 IN A {}", POD_A1[0]);
                self.unbound.control(&["local_data_remove", &format!("t{number}.example.")]);
                if fault != Fault::NoSuchName {
                    self.unbound.control(&["local_data", &record]);
                }
            }
            kind => self.write_objects(number, kind),
        }
    }

    fn write_objects(&self, number: usize, kind: Kind) {
        let (name, fault) = (format!("t{number}"), self.faults[number]);
        if fault == Fault::Deleted {
            self.cluster.delete("services", "default", &name).unwrap();
            return;
        }
        let policy = if kind == Kind::Local { "Local" } else { "Cluster" };
        apply(
            &self.cluster,
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
                "spec": {"type": "LoadBalancer", "clusterIP": format!("198.51.100.{}", 100 + number),
                    "clusterIPs": [format!("198.51.100.{}", 100 + number)], "externalTrafficPolicy": policy,
                    "allocateLoadBalancerNodePorts": false, "ports": [{"port": 80, "protocol": "TCP"}]},
                "status": {"loadBalancer": {"ingress": [{"ip": host_of(number)}]}},
            }),
        );
        let at = if fault == Fault::Elsewhere { (POD_B[0], "node-b") } else { (POD_A1[0], "node-a") };
        let ready = fault != Fault::NotReady;
        let endpoint = json!({"addresses": [at.0], "nodeName": at.1, "conditions": {"ready": ready}});
        let endpoints: Vec<Value> = if fault == Fault::EmptySlice { vec![] } else { vec![endpoint] };
        apply(
            &self.cluster,
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": name}},
                "endpoints": endpoints, "ports": [{"name": "", "port": port(number), "protocol": "TCP"}],
            }),
        );
    }

    /// Lets something else happen to a service, or nothing.
    pub(super) fn change(&mut self, number: usize, random: &mut Random) {
        let faults = Fault::all(Kind::of(number));
        let fault = faults[usize::try_from(random.below(faults.len() as u64)).unwrap()];
        self.set(number, fault);
    }

    pub(super) fn set(&mut self, number: usize, fault: Fault) {
        let before = std::mem::replace(&mut self.faults[number], fault);
        if before == fault {
            return;
        }
        self.done.push((now(), number, fault));
        match before {
            Fault::Rival => self.host.withdraw(&format!("rival{number}.toml")),
            Fault::OwnAddress => ip(&["address", "del", &format!("{}/32", host_of(number)), "dev", "lo"]),
            _ => {}
        }
        match fault {
            Fault::OneDead | Fault::AllDead => {
                drop(self.backends.remove(&(number, false)));
                if fault == Fault::AllDead {
                    drop(self.backends.remove(&(number, true)));
                }
            }
            Fault::Rival => {
                let text = format!(
                    "[[service]]\nname = \"truth/rival{number}\"\nfrontends = [{:?}]\nbackends = [\"192.0.2.99:80\"]\n",
                    address(number)
                );
                self.host.serve(&format!("rival{number}.toml"), &text);
            }
            Fault::OwnAddress => ip(&["address", "add", &format!("{}/32", host_of(number)), "dev", "lo"]),
            _ => {}
        }
        if Kind::of(number) == Kind::Checked {
            if fault != Fault::AllDead {
                self.revive(number, true);
            }
            if fault == Fault::None {
                self.revive(number, false);
            }
        } else {
            self.write(number);
        }
    }

    /// Lets something happen to the node, which takes up to two seconds.
    pub(super) fn disturb(&mut self, random: &mut Random) {
        let pause = Duration::from_millis(random.below(2_000));
        match random.below(6) {
            which @ 0..2 => {
                let begin = now();
                let mut daemon = self.daemon.take().unwrap();
                daemon.signal(if which == 0 { Signal::SIGKILL } else { Signal::SIGTERM });
                daemon.wait();
                thread::sleep(pause);
                self.is_invalid = random.below(2) == 0;
                (0..self.faults.len()).filter(|it| Kind::of(*it) == Kind::Checked).for_each(|it| self.write(it));
                let [directory, away] = ["services.d", "away"].map(|name| self.host.path(name));
                let is_away = random.below(4) == 0;
                if is_away {
                    fs::rename(&directory, &away).unwrap();
                }
                let start = now();
                self.daemon = Some(self.host.start());
                if is_away {
                    thread::sleep(Duration::from_secs(1));
                    fs::rename(&away, &directory).unwrap();
                }
                // On a busy machine, the first health checks take long, too.
                self.dead.push((begin, now() + 4 * (now() - start)));
            }
            2 => {
                self.replica = None;
                thread::sleep(pause);
                self.replica = Some(serve(&self.cluster, APISERVER));
            }
            3 => {
                self.unbound.signal(Signal::SIGSTOP);
                thread::sleep(pause);
                self.unbound.signal(Signal::SIGCONT);
            }
            4 => {
                self.reload(&format!("{}no-such-key = 1\n", self.config));
                thread::sleep(pause);
                self.reload(&self.config.clone());
            }
            _ => {
                let many = |count: usize| -> String {
                    let frontends: Vec<String> =
                        (0..count).map(|it| format!("10.96.{}.{}:80", it / 250, it % 250)).collect();
                    format!(
                        "[[service]]\nname = \"truth/many\"\nfrontends = {frontends:?}\nbackends = [\"192.0.2.99:80\"]\n"
                    )
                };
                self.host.serve("many.toml", &many(400));
                thread::sleep(pause);
                self.host.serve("many.toml", &many(1));
            }
        }
    }

    fn reload(&self, config: &str) {
        self.host.configure(config);
        if let Some(daemon) = &self.daemon {
            daemon.signal(Signal::SIGHUP);
        }
    }

    pub(super) fn finish(mut self) {
        if let Some(daemon) = self.daemon.take() {
            daemon.stop();
        }
        for number in 0..self.faults.len() {
            if self.faults[number] == Fault::OwnAddress {
                self.set(number, Fault::None);
            }
        }
        fs::remove_dir_all(self.host.path("state")).unwrap();
        for file in fs::read_dir(self.host.path("services.d")).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
        self.host.cleanup();
    }
}
