//! The configuration file: its keys, their checks, and the printed example. Owns nothing at run time: a [`Config`] is a
//! value that `main` reads at the start and again on SIGHUP. Other modules read values from the machine itself (host
//! name, interface addresses, the cgroup root); here an empty value means that they should.

mod keys;
mod kubernetes;
mod packets;
mod values;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use nodelb_core::compile::guard::Guard;
use nodelb_core::datapath::Limits;
use nodelb_core::model::addr::Addr;
use nodelb_kube::apiserver::credentials::credstore;
use nodelb_kube::apiserver::settings::Settings;
use nodelb_sources::document::{self, Problem, Problems, Read};
use serde::Deserialize;
use toml::de::DeTable;

pub use self::keys::{Admin, Datapath, Dns, Files, Log, Node, State};
use self::keys::{Key, Section};
pub use self::kubernetes::Kubernetes;
pub use self::packets::{Choice, DeviceName, PacketMode, Packets, Snat, SnatPorts, Unknown, Xdp};
pub use self::values::{Disconnect, Hold, Seconds};

/// The default path of the configuration. The file need not exist.
pub const DEFAULT_PATH: &str = "/etc/nodelb/nodelb.toml";

/// The configuration: checked, and complete because every key has a default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    #[serde(deserialize_with = "document::table")]
    pub node: Node,
    #[serde(deserialize_with = "document::table")]
    pub files: Files,
    #[serde(deserialize_with = "document::table")]
    pub dns: Dns,
    #[serde(deserialize_with = "document::table")]
    pub kubernetes: Kubernetes,
    #[serde(deserialize_with = "document::table")]
    pub state: State,
    #[serde(deserialize_with = "document::table")]
    pub admin: Admin,
    #[serde(deserialize_with = "document::table")]
    pub datapath: Datapath,
    #[serde(deserialize_with = "document::table")]
    pub packets: Packets,
    #[serde(deserialize_with = "document::table")]
    pub log: Log,
}

/// An invalid configuration file, with all its problems. Prints one problem per line, each as `PATH:LINE: problem`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", problems.iter().map(|problem| problem.of(path)).collect::<Vec<_>>().join("\n"))]
pub struct ConfigError {
    pub path: PathBuf,
    /// The problems, at least one.
    pub problems: Vec<Problem>,
}

impl Config {
    /// Reads the file at `path`; without one, the file at [`DEFAULT_PATH`] or, if that does not exist, the defaults.
    ///
    /// # Errors
    /// If the file cannot be read or has problems; the error contains all of them.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        Self::load_with_absence(path).map(|(config, _)| config)
    }

    /// [`Self::load`]; also says why these are the defaults, if there is no configuration: the file is gone, or has nothing
    /// in it.
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub fn load_with_absence(path: Option<&Path>) -> Result<(Self, Option<String>), ConfigError> {
        Self::load_or_default(path, Path::new(DEFAULT_PATH))
    }

    fn load_or_default(explicit: Option<&Path>, default: &Path) -> Result<(Self, Option<String>), ConfigError> {
        let path = explicit.unwrap_or(default);
        let refused = |problems| ConfigError { path: path.to_path_buf(), problems };
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let absence = text.trim().is_empty().then(|| format!("{} is empty", path.display()));
                Ok((Self::parse(&text).map_err(refused)?, absence))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && explicit.is_none() => {
                Ok((Self::default(), Some(format!("no {}", path.display()))))
            }
            Err(error) => {
                let message = format!("cannot read the configuration: {error}; nothing was started or changed");
                Err(refused(vec![Problem::whole(message)]))
            }
        }
    }

    /// Reads a configuration from its text.
    ///
    /// # Errors
    /// All problems of the text, sorted by line.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let mut problems = Problems::new(text);
        let table = document::parse(text, &mut problems);
        let Read { value: config, .. } = document::read::<Self>(table.span(), table.get_ref(), "", &mut problems);
        config.check(table.get_ref(), &mut problems);
        if problems.is_empty() { Ok(config) } else { Err(problems.into_list()) }
    }

    /// Reports all values, and combinations of them, that have the right type but cannot be used.
    fn check(&self, table: &DeTable<'_>, problems: &mut Problems) {
        let within = self.sections().map(|section| (section.name(), section.check()));
        let across = (self.packets.name(), self.packets.check_with(&self.datapath));
        for (section, found) in within.into_iter().chain([across]) {
            for (key, message) in found {
                let value = table.get(section).and_then(|keys| keys.get_ref().get(&*key));
                match value {
                    Some(value) => problems.push(&value.span(), format!("{section}.{key}: {message}")),
                    None => problems.push(&start_of(table, section), self.about_default(section, &key, &message)),
                }
            }
        }
    }

    /// The text of a problem with a key that is not in the file: its default does not go with the value of another key.
    fn about_default(&self, section: &str, key: &str, message: &str) -> String {
        let is_it = |it: &&Key| it.section == section && it.name == key;
        let value = self.keys().iter().find(is_it).map(|it| it.value.clone()).unwrap_or_default();
        format!("{section}.{key} (not set; its default is {value}): {message}")
    }

    /// The rules about addresses that no service may have, and backends that none may use.
    pub fn guard(&self) -> Guard {
        let admin = self.admin.listen.iter().map(|address| (Addr::from(address.ip()), address.port())).collect();
        let listen = self.admin.listen.iter().map(|address| (address.port(), "admin.listen"));
        let healthz = self.healthz_addresses().into_iter();
        let healthz = healthz.map(|address| (address.port(), "kubernetes.healthz-addresses"));
        Guard {
            admin,
            own_ports: listen.chain(healthz).filter(|(port, _)| *port != 0).collect(),
            bypass: self.datapath.bypass.clone(),
            nodeport_range: self.datapath.nodeport_range.clone(),
            source_ports: self.packets.ports_of_no_nodeport(&self.datapath.nodeport_range),
            external_ips: self.datapath.external_ips.clone(),
            own_addresses: self.datapath.own_addresses.clone(),
        }
    }

    /// The keys, such as `datapath.max-slots`, that differ in `new` and take effect only after a restart.
    pub fn restart_keys(&self, new: &Self) -> Vec<String> {
        let mode_needs_restart = self.packets.mode_needs_restart(&new.packets);
        let (old, new) = (self.keys(), new.keys());
        let is_mode = |key: &Key| key.section == "packets" && key.name == "mode";
        let needs_restart = |key: &Key| key.needs_restart || (is_mode(key) && mode_needs_restart);
        let changed = old.iter().zip(&new).filter(|(old, new)| needs_restart(old) && old.value != new.value);
        changed.map(|(old, _)| format!("{}.{}", old.section, old.name)).collect()
    }

    /// The configuration as a file: every key with its comment and its current value. The file with the defaults is
    /// `config.example.toml`.
    pub fn to_toml(&self) -> String {
        let mut text = String::from(EXAMPLE_HEADER);
        let mut section = "";
        for key in self.keys() {
            if section == key.section {
                text.push('\n');
            } else {
                section = key.section;
                text.push_str(&format!("\n[{section}]\n"));
            }
            for line in key.comment {
                text.push_str(&format!("#{line}\n"));
            }
            text.push_str(&format!("{} = {}\n", key.name, key.value));
        }
        text
    }

    /// Every key, such as `datapath.max-slots`, with its value in TOML and whether that is the default.
    pub fn settings(&self) -> impl Iterator<Item = (String, String, bool)> {
        let pairs = self.keys().into_iter().zip(Self::default().keys());
        pairs.map(|(key, default)| {
            let is_default = key.value == default.value;
            (format!("{}.{}", key.section, key.name), key.value, is_default)
        })
    }

    /// The addresses where load balancers check this node; empty unless Kubernetes is configured.
    pub fn healthz_addresses(&self) -> Vec<SocketAddr> {
        let addresses = &self.kubernetes.healthz_addresses;
        self.kubernetes_settings().map_or_else(Vec::new, |_| addresses.clone())
    }

    /// Whether Kubernetes is neither configured nor disabled, as in an empty or reset configuration.
    pub fn is_kubernetes_unset(&self) -> bool {
        self.kubernetes.enabled && self.kubernetes_settings().is_none()
    }

    /// The settings to connect to Kubernetes; `None` if Kubernetes is not configured.
    pub fn kubernetes_settings(&self) -> Option<Settings> {
        if !self.kubernetes.enabled {
            return None;
        }
        let Kubernetes { kubeconfig, token_file, ca_file, proxy, service_cidrs, apiserver, .. } =
            self.kubernetes.clone();
        let State { directory } = &self.state;
        let set = |path: PathBuf| Some(path).filter(|path| !path.as_os_str().is_empty()).map(credstore::locate);
        let (kubeconfig, token_file, ca_file) = (set(kubeconfig), set(token_file), set(ca_file));
        // After the checks, no other combination names a server.
        (kubeconfig.is_some() || !apiserver.is_empty()).then(|| Settings {
            servers: apiserver,
            kubeconfig,
            token_file,
            ca_file,
            proxy: Some(proxy).filter(|proxy| !proxy.is_empty()),
            service_cidrs,
            state_directory: directory.clone(),
        })
    }

    /// The sizes of the maps. Without packets, those of the packet path do not exist.
    pub fn limits(&self) -> Limits {
        let limits = self.datapath.limits();
        if !self.packets.is_on() {
            return limits;
        }
        let Packets { max_outside, max_source_ranges, .. } = self.packets;
        Limits { outside: max_outside, source_ranges: max_source_ranges, ..limits }
    }

    fn sections(&self) -> [&dyn Section; 9] {
        let Self { node, files, dns, kubernetes, state, admin, datapath, packets, log } = self;
        [node, files, dns, kubernetes, state, admin, datapath, packets, log]
    }

    fn keys(&self) -> Vec<Key> {
        self.sections().into_iter().flat_map(Section::keys).collect()
    }
}

/// Where the section begins; without it, the beginning of the file.
fn start_of(table: &DeTable<'_>, section: &str) -> Range<usize> {
    table.get_key_value(section).map_or(0..0, |(name, _)| name.span())
}

const EXAMPLE_HEADER: &str = "\
# nodelb reads this file from /etc/nodelb/nodelb.toml. Every key is shown at its default; what you leave out stays at
# it. `nodelb check-config` shows every problem at once. `systemctl reload nodelb` applies changes, except those to
# [dns], [kubernetes], [state], [admin], [datapath] and most keys of [packets], which need a restart.
";

impl Admin {
    /// Path of the unix socket; `None` for no socket.
    pub fn socket(&self) -> Option<&Path> {
        Some(self.socket.as_path()).filter(|path| !path.as_os_str().is_empty())
    }
}

impl Datapath {
    /// The sizes of the maps that sockets need.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            frontends: self.max_frontends,
            services: self.max_services,
            slots: self.max_slots,
            affinity: self.max_affinity,
            outside: 0,
            source_ranges: 0,
        }
    }

    /// The cgroup to attach to; `None` for the root of cgroup v2, which is searched.
    pub fn cgroup(&self) -> Option<&Path> {
        Some(self.cgroup.as_path()).filter(|path| !path.as_os_str().is_empty())
    }
}

#[cfg(test)]
#[path = "tests/config.rs"]
mod tests;
