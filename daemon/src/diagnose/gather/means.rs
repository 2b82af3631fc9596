//! With what a command reaches the witnesses: the admin addresses, the credentials, the name of this node.

use crate::apiserver::session::Settings;
use crate::cli::Whom;
use crate::cli::client::{self, At};
use crate::config::{self, Config};
use crate::exit::{Code, Failure};
use crate::node;

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
    pub fn of(whom: &Whom) -> Result<Self, Failure> {
        let config = Config::load(whom.config.as_deref()).map_err(|error| Failure::new(Code::Config, error))?;
        let node = node::Identity::of(&config.node);
        let node =
            node.map_err(|error| Failure::message(Code::System, format!("asking for the node's name: {error}")))?;
        let settings = match &whom.kubeconfig {
            None => config.kubernetes_settings(),
            Some(file) => {
                let file = std::path::absolute(file).map_err(|error| {
                    Failure::message(Code::Usage, format!("--kubeconfig {}: {error}", file.display()))
                })?;
                let of_daemon = config.kubernetes_settings().unwrap_or_default();
                let state_directory = config.state.directory.clone();
                Some(Settings { kubeconfig: Some(file), token_file: None, ca_file: None, state_directory, ..of_daemon })
            }
        };
        let admin = whom.admin.clone().map_or_else(|| places(config.admin), |at| vec![at]);
        Ok(Self { admin, settings, node: node.name.to_string() })
    }
}

/// Where the configuration says, and where the daemon listens by itself; a socket only where there is one.
fn places(configured: config::Admin) -> Vec<At> {
    let mut places = client::places(configured);
    let others = client::places(config::Admin::default()).into_iter().filter(|at| !places.contains(at));
    places.extend(others.collect::<Vec<_>>());
    places
}
