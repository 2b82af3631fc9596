//! Kubeconfig files.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::cluster::{Cluster, Credentials};

impl Cluster {
    /// Returns a kubeconfig of the user `nodelb` with a new client certificate, for apiservers at
    /// these URLs; the first one is the current context.
    ///
    /// # Errors
    /// The random number generator failed.
    pub fn kubeconfig(&self, urls: &[&str]) -> anyhow::Result<String> {
        let certificate = self.certificate("nodelb", &["system:node-proxiers"])?;
        Ok(self.kubeconfig_for(&Credentials::Certificate(certificate), urls))
    }

    /// Returns a kubeconfig of a user with all permissions.
    ///
    /// # Errors
    /// The random number generator failed.
    pub fn admin_kubeconfig(&self, urls: &[&str]) -> anyhow::Result<String> {
        let certificate = self.certificate("admin", &["system:masters"])?;
        Ok(self.kubeconfig_for(&Credentials::Certificate(certificate), urls))
    }

    /// Returns a kubeconfig with these credentials.
    pub fn kubeconfig_for(&self, credentials: &Credentials, urls: &[&str]) -> String {
        let ca = STANDARD.encode(self.ca_pem());
        let mut text = "apiVersion: v1\nkind: Config\ncurrent-context: server-0\nclusters:\n".to_owned();
        for (number, url) in urls.iter().enumerate() {
            text += &format!(
                "- name: server-{number}\n  cluster:\n    server: {url}\n    certificate-authority-data: {ca}\n"
            );
        }
        text += "contexts:\n";
        for number in 0..urls.len() {
            text += &format!("- name: server-{number}\n  context:\n    cluster: server-{number}\n    user: user\n");
        }
        text += "users:\n- name: user\n  user:\n";
        text += &match credentials {
            Credentials::Token(token) => format!("    token: {token}\n"),
            Credentials::Certificate(certificate) => format!(
                "    client-certificate-data: {}\n    client-key-data: {}\n",
                STANDARD.encode(&certificate.certificate),
                STANDARD.encode(&certificate.key)
            ),
        };
        text
    }
}
