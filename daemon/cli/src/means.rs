//! With what a command reaches the witnesses: the admin addresses, the credentials, the name of this node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use nodelb_kube::apiserver::session::Settings;

use crate::Whom;
use crate::client::{self, At};
use crate::exit::{Code, Failure};

/// What the daemon's configuration says of them.
#[derive(Clone, Debug)]
pub struct Configured {
    /// The socket of the admin API.
    pub socket: PathBuf,
    /// Its addresses.
    pub listen: Vec<SocketAddr>,
    /// How Kubernetes is reached; `None` where none is configured.
    pub kubernetes: Option<Settings>,
    /// What outlives a reboot lies there.
    pub state_directory: PathBuf,
    /// The name of this node.
    pub node: String,
}

/// Reads the configuration, which is the daemon's, at this path or at the default one. The failure says what is wrong with it.
pub type ReadConfiguration = fn(Option<&Path>) -> Result<Configured, Failure>;

/// See the module.
#[derive(Clone, Debug)]
pub struct Means {
    /// Where the daemon may listen.
    pub admin: Vec<At>,
    /// How Kubernetes is reached; `None` where none is configured.
    pub settings: Option<Settings>,
    /// The name of this node.
    pub node: String,
}

impl Means {
    /// As the configuration and the command line say.
    ///
    /// # Errors
    /// When the configuration has a problem, or the node has no name.
    pub fn of(whom: &Whom, read: ReadConfiguration) -> Result<Self, Failure> {
        let config = read(whom.config.as_deref())?;
        let settings = match &whom.kubeconfig {
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
        let admin = whom.admin.clone().map_or_else(|| places(&config.socket, &config.listen), |at| vec![at]);
        Ok(Self { admin, settings, node: config.node })
    }
}

/// Where the configuration says, and where the daemon listens by itself; a socket only where there is one.
fn places(socket: &Path, listen: &[SocketAddr]) -> Vec<At> {
    let mut places = client::places(socket, listen);
    let others = client::default_places().into_iter().filter(|at| !places.contains(at));
    places.extend(others.collect::<Vec<_>>());
    places
}
