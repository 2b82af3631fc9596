//! The settings of the connection to an apiserver.

use std::path::PathBuf;

use ipnet::IpNet;

use super::address::Server;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The configured servers in order of preference. Learned addresses never change it.
    pub servers: Vec<Server>,
    /// The path of the kubeconfig, which contains a server and credentials.
    pub kubeconfig: Option<PathBuf>,
    /// The path of a file with a bearer token, without a kubeconfig.
    pub token_file: Option<PathBuf>,
    /// The path of a file with the certificate authority, without a kubeconfig.
    pub ca_file: Option<PathBuf>,
    /// An HTTP proxy (`http://HOST:PORT`) for all connections. Environment variables are ignored.
    pub proxy: Option<String>,
    /// Networks with services; addresses in them are never learned as addresses of apiservers.
    pub service_cidrs: Vec<IpNet>,
    /// The directory for learned facts that must survive a reboot.
    pub state_directory: PathBuf,
}
