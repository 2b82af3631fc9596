//! What a command needs to reach the daemon and an apiserver: the admin addresses, the credentials, the name of this
//! node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use nodelb_kube::api::scope::Selection;
use nodelb_kube::apiserver::settings::Settings;

use crate::ConnectionOptions;
use crate::client::{self, At};
use crate::exit::{Code, Failure};

/// The part of the daemon's configuration that commands need.
#[derive(Clone, Debug)]
pub struct Configured {
    pub socket: PathBuf,
    pub listen: Vec<SocketAddr>,
    /// The settings for Kubernetes; `None` if Kubernetes is not configured.
    pub kubernetes: Option<Settings>,
    pub selection: Selection,
    /// The directory of the state that outlives a reboot.
    pub state_directory: PathBuf,
    pub node: String,
}

/// Reads the daemon's configuration at this path, or at the default one. The failure describes what is wrong with it.
pub type ReadConfiguration = fn(Option<&Path>) -> Result<Configured, Failure>;

#[derive(Clone, Debug)]
pub struct Endpoints {
    /// The addresses where the daemon may listen.
    pub admin: Vec<At>,
    pub settings: Option<Settings>,
    /// The services that may be read with these settings.
    pub selection: Selection,
    pub node: String,
}

impl Endpoints {
    /// Combines the configuration with the command line.
    pub fn new(connection: &ConnectionOptions, read: ReadConfiguration) -> Result<Self, Failure> {
        let config = read(connection.config.as_deref())?;
        let selection = if connection.kubeconfig.is_none() { config.selection } else { Selection::default() };
        let settings = match &connection.kubeconfig {
            None => config.kubernetes,
            Some(file) => {
                let file = std::path::absolute(file).map_err(|error| {
                    Failure::message(Code::Usage, format!("--kubeconfig {}: {error}", file.display()))
                })?;
                let of_daemon = config.kubernetes.unwrap_or_default();
                let state_directory = config.state_directory;
                Some(Settings { kubeconfig: Some(file), token_file: None, ca_file: None, state_directory, ..of_daemon })
            }
        };
        let admin = connection.admin.clone().map_or_else(|| addresses(&config.socket, &config.listen), |at| vec![at]);
        Ok(Self { admin, settings, selection, node: config.node })
    }
}

/// Returns the configured addresses, then the default ones. A socket is included only if it exists.
fn addresses(socket: &Path, listen: &[SocketAddr]) -> Vec<At> {
    let mut addresses = client::addresses(socket, listen);
    let others = client::default_addresses().into_iter().filter(|at| !addresses.contains(at));
    addresses.extend(others.collect::<Vec<_>>());
    addresses
}
