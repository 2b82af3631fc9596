//! An engine with a kernel datapath.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use libbpf_rs::Link;
use nodelb_core::change::Change;
use nodelb_core::config::{EngineConfig, PacketsConfig};
use nodelb_core::datapath::{Datapath, Limits};
use nodelb_core::engine::Engine;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::Source;
use nodelb_core::state::entries::CANARIES;
use nodelb_datapath::{KernelDatapath, Options};

use services::synced;

#[path = "services.rs"]
pub(crate) mod services;

/// Large enough for every measurement.
pub(crate) const LIMITS: Limits =
    Limits { frontends: 131_072, services: 65_536, slots: 524_288, affinity: 1_024, outside: 0, source_ranges: 0 };

/// An engine and its maps.
pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) datapath: KernelDatapath,
    packets: PacketsConfig,
    pins: PathBuf,
    clock: u64,
}

impl World {
    /// Creates empty maps under a pin directory of this name and attaches the programs to the
    /// cgroup.
    pub(crate) fn new(bpffs: &Path, name: &str, cgroup: &Path) -> Self {
        Self::with(bpffs, name, cgroup, true)
    }

    /// The same, with or without connection counters.
    pub(crate) fn with(bpffs: &Path, name: &str, cgroup: &Path, count_connections: bool) -> Self {
        let options = Options {
            pin_directory: bpffs.join(name),
            cgroup: Some(cgroup.to_path_buf()),
            limits: LIMITS,
            nodeport_range: 30_000..=32_767,
            protect_nodeports: true,
            count_connections,
            packets: None,
            hook_method: None,
            layout: nodelb_datapath::LAYOUT,
            crash_after: None,
        };
        Self::open(options)
    }

    /// The same with these options; with packets, clients outside the node may connect to all services.
    pub(crate) fn open(options: Options) -> Self {
        let (datapath, _) = KernelDatapath::open(&options).unwrap();
        let packets = PacketsConfig {
            is_on: options.packets.is_some(),
            cluster_ips: true,
            is_consistent: true,
            direct_return: true,
        };
        let engine = engine(&datapath, packets);
        Self { engine, datapath, packets, pins: options.pin_directory, clock: 0 }
    }

    /// Applies the changes in one round, in which no operation may fail. Returns the number of
    /// operations.
    pub(crate) fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> usize {
        changes.into_iter().for_each(|change| self.engine.change(change));
        // Two seconds per round: freed runs are reusable in the next round.
        self.clock += 2_000;
        let round = self.engine.reconcile(&mut self.datapath, Moment(self.clock));
        assert_eq!(round.failed, 0);
        round.done
    }

    /// Detaches the programs and returns when none runs any more.
    pub(crate) fn detach(&mut self) {
        for link in fs::read_dir(self.links()).unwrap() {
            Link::open(link.unwrap().path()).unwrap().detach().unwrap();
        }
        // The kernel detaches in the background. A canary is refused as long as a program is
        // attached.
        let canary = SocketAddr::new(CANARIES[0].addr.ip(), CANARIES[0].port);
        let is_refused = || {
            let socket = UdpSocket::bind("192.0.2.9:0").unwrap();
            socket.connect(canary).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        };
        while is_refused() {
            sleep(Duration::from_millis(1));
        }
        sleep(Duration::from_millis(5));
    }

    fn links(&self) -> PathBuf {
        self.pins.join("v1/links")
    }

    /// Removes all services and starts with a new engine.
    pub(crate) fn forget(&mut self) {
        self.engine = engine(&self.datapath, self.packets);
        self.apply([synced()]);
        self.engine = engine(&self.datapath, self.packets);
    }
}

fn engine(datapath: &impl Datapath, packets: PacketsConfig) -> Engine {
    let config = EngineConfig {
        sources: BTreeSet::from([Source::Files]),
        max_services: datapath.limits().services,
        packets,
        ..EngineConfig::default()
    };
    Engine::new(config, datapath.dump().unwrap())
}
