//! The environment with real sockets: maps in the kernel, listening backends, a client on the host
//! and one in a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use nodelb_core::compile::guard::Guard;
use nodelb_core::datapath::Limits;
use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::ServiceId;
use nodelb_prober::{Backend, Transport};

use crate::environment::{Client, Environment, Outcome};
use crate::health_check_server::{self, HealthCheckServer};
use crate::maps::{KernelMaps, options};
use crate::observe::observe;
use crate::outside_model::{Attempt, Frame, Met};
use crate::pod::Pod;
use crate::sandbox::Sandbox;

/// State shared by all scenarios: the sandbox, its pod, and the listening backends.
pub(crate) struct Net {
    cgroup: PathBuf,
    pins: PathBuf,
    pod: Pod,
    backends: BTreeMap<L4Addr, Backend>,
}

impl Net {
    pub(crate) fn new(sandbox: &Sandbox) -> Self {
        let pins = sandbox.bpffs.join("nodelb");
        Self { cgroup: sandbox.cgroup.clone(), pins, pod: Pod::new(0), backends: BTreeMap::new() }
    }
}

/// The environment of one scenario.
pub(crate) struct Kernel<'net> {
    net: &'net mut Net,
    /// For each client and service with affinity: its backend, and the time of its last connection.
    kept: BTreeMap<(Client, ServiceId), (L4Addr, Instant)>,
    /// The server of the healthCheckNodePorts, after the first request.
    entry: Option<HealthCheckServer>,
}

impl<'net> Kernel<'net> {
    pub(crate) fn new(net: &'net mut Net) -> Self {
        Self { net, kept: BTreeMap::new(), entry: None }
    }

    /// What one client observes; as text if it is not one of the possible outcomes.
    fn observe(&mut self, client: Client, to: L4Addr, traced: &Outcome) -> Result<Outcome, String> {
        let began = Instant::now();
        let met = match client {
            Client::Host => observe(to, traced),
            Client::Pod => self.net.pod.run(|| observe(to, traced)),
        }?;
        let Outcome::Keeps { service, seconds, ref one_of } = *traced else { return Ok(met) };
        let Outcome::Reaches(reached) = &met else { return Ok(met) };
        let Some(&backend) = reached.first().filter(|_| reached.len() == 1) else {
            return Err(format!("{met} although its affinity lasts {seconds} s"));
        };
        if !one_of.contains(&backend) {
            return Err(format!("keeps {backend}, which is not one of them"));
        }
        let before = self.kept.insert((client, service), (backend, began));
        if let Some((before, at)) = before
            && one_of.contains(&before)
            && at.elapsed() < Duration::from_secs(seconds.into())
            && before != backend
        {
            return Err(format!("leaves {before} for {backend}"));
        }
        Ok(traced.clone())
    }
}

impl Environment for Kernel<'_> {
    type Maps = KernelMaps;

    fn maps(&mut self, limits: Limits, guard: &Guard) -> Result<KernelMaps, String> {
        KernelMaps::open(options((&self.net.pins, &self.net.cgroup), limits, guard))
    }

    fn connect(&mut self, to: L4Addr, from: Client, traced: &Outcome) -> Result<String, String> {
        Ok(self.observe(from, to, traced).map_or_else(|odd| odd, |outcome| outcome.to_string()))
    }

    fn connect_outside(&mut self, _: &Attempt, _: &Met) -> Result<Met, String> {
        Err("clients outside the node are in scenarios/outside, which tests/netns runs".into())
    }

    fn talk(&mut self, _: &str, _: &Frame, _: &Met) -> Result<Met, String> {
        Err("clients outside the node are in scenarios/outside, which tests/netns runs".into())
    }

    fn health_check(&mut self, at: L4Addr, snapshot: Snapshot, expected: &str) -> Result<String, String> {
        let entry = self.entry.get_or_insert_with(HealthCheckServer::start);
        entry.publish(snapshot);
        let to = SocketAddr::new(at.addr.ip(), at.port);
        let mut response = [Client::Host, Client::Pod].map(|_| String::new());
        // The listeners follow the published state asynchronously.
        for _ in 0..500 {
            response = [health_check_server::get(to), self.net.pod.run(|| health_check_server::get(to))];
            if response.iter().all(|response| response == expected) {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let [host, pod] = response;
        Ok(if host == pod { host } else { format!("{host} from host; {pod} from pod") })
    }

    fn listen(&mut self, backends: &BTreeSet<L4Addr>) -> Result<(), String> {
        for &at in backends {
            let transport = match at.protocol {
                Protocol::Tcp => Transport::Tcp,
                Protocol::Udp => Transport::Udp,
                Protocol::Sctp => continue,
            };
            if at.addr.is_loopback() || at.addr.is_link_local() || self.net.backends.contains_key(&at) {
                continue;
            }
            let listen = [(transport, SocketAddr::new(at.addr.ip(), at.port))];
            let backend = Backend::start(&at.to_string(), &listen).map_err(|error| error.to_string())?;
            self.net.backends.insert(at, backend);
        }
        Ok(())
    }

    fn wait(&mut self, seconds: u64) {
        thread::sleep(Duration::from_secs(seconds));
    }
}
