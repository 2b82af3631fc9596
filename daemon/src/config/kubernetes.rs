//! The `[kubernetes]` section: the format of an apiserver, and the checks of combinations of keys.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use nodelb_kube::apiserver::address::{Address, Host, Server};
use nodelb_kube::apiserver::url::Shown;
use rustls::pki_types::ServerName;

use super::values::{Check, TomlValue, quoted};
use crate::document::{Fields, Mismatches, Setting, Value, wrong_type};

impl Setting for Server {
    fn read(value: &Value<'_>, mismatches: &mut Mismatches) -> Option<Self> {
        let Some(table) = value.get_ref().as_table() else {
            return wrong_type(value, "a table such as { address = \"192.0.2.1:6443\" }", mismatches);
        };
        let before = mismatches.len();
        let mut fields = Fields::of(table, "apiserver.");
        let address = fields.setting::<String>("address", mismatches);
        let address = address.map(|text| (text.parse::<Address>(), "address"));
        let tls_server_name = fields.setting::<String>("tls-server-name", mismatches);
        mismatches.extend(fields.unknown());
        let at = |key: &str| table.get(key).map_or_else(|| value.span(), toml::Spanned::span);
        let address = match address {
            Some((Ok(address), _)) => Some(address),
            Some((Err(error), key)) => {
                mismatches.push((at(key), format!("{key}: {error}")));
                None
            }
            None if table.contains_key("address") => None,
            None => {
                mismatches.push((value.span(), "address: missing; say where the apiserver listens".into()));
                None
            }
        };
        if let Some(name) = tls_server_name.as_deref().filter(|name| ServerName::try_from(*name).is_err()) {
            let message = format!("tls-server-name: `{name}` is not a name a certificate can carry");
            mismatches.push((at("tls-server-name"), message));
        }
        let tls_server_name = tls_server_name.map(Arc::from);
        address.filter(|_| mismatches.len() == before).map(|address| Self { address, tls_server_name })
    }
}

impl TomlValue for Server {
    fn to_toml(&self) -> String {
        let address = quoted(&self.address);
        match &self.tls_server_name {
            Some(name) => format!("{{ address = {address}, tls-server-name = {} }}", quoted(name)),
            None => format!("{{ address = {address} }}"),
        }
    }
}

pub(super) fn each_once(servers: &[Server]) -> Check {
    let mut seen = BTreeSet::new();
    match servers.iter().find(|server| !seen.insert(&server.address)) {
        Some(twice) => Err(format!("{} is listed twice; remove one", twice.address)),
        None => Ok(()),
    }
}

pub(super) fn proxy_or_empty(proxy: &str) -> Check {
    let is_proxy = || {
        let authority = proxy.strip_prefix("http://")?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        authority.parse::<Address>().ok()
    };
    if proxy.is_empty() || is_proxy().is_some() {
        Ok(())
    } else {
        Err(format!(
            "`{}` is not an HTTP proxy (expected http://HOST:PORT, such as http://192.0.2.9:3128)",
            Shown(proxy)
        ))
    }
}

/// The keys that are checked together.
#[derive(Clone, Copy)]
pub(super) struct Together<'c> {
    pub(super) kubeconfig: &'c Path,
    pub(super) token_file: &'c Path,
    pub(super) ca_file: &'c Path,
    pub(super) apiserver: &'c [Server],
    pub(super) service_cidrs: &'c [IpNet],
}

/// The problems of combinations of valid keys: the key to report, and what to do.
pub(super) fn together(section: Together<'_>) -> Vec<(&'static str, String)> {
    let is_set = |path: &Path| !path.as_os_str().is_empty();
    let (kubeconfig, token, ca) = (is_set(section.kubeconfig), is_set(section.token_file), is_set(section.ca_file));
    let mut wrong = Vec::new();
    let mut wrong_at = |key, message: String| wrong.push((key, message));
    for (key, set) in [("token-file", token), ("ca-file", ca)] {
        if set && kubeconfig {
            wrong_at(key, "kubeconfig has the credentials already; leave out one of the two".into());
        }
    }
    if !kubeconfig && token && !ca {
        wrong_at("token-file", "needs ca-file too: the token must not go to a server nobody vouches for".into());
    }
    if !kubeconfig && ca && !token {
        wrong_at("ca-file", "needs token-file too: an apiserver wants to know who asks".into());
    }
    if !kubeconfig && !token && !ca && !section.apiserver.is_empty() {
        wrong_at("apiserver", "credentials are missing; set kubeconfig, or token-file and ca-file".into());
    }
    if !kubeconfig && token && ca && section.apiserver.is_empty() {
        let message = "no apiserver to show it to; set apiserver = [{ address = \"HOST:PORT\" }], or use kubeconfig";
        wrong_at("token-file", message.into());
    }
    if let Some((server, net)) = in_service_cidr(section.apiserver, section.service_cidrs) {
        let message = format!(
            "{server} is a service address (it lies in {net}), and nodelb never translates its own connections; \
             write an address the apiserver itself listens on"
        );
        wrong_at("apiserver", message);
    }
    wrong
}

fn in_service_cidr<'c>(servers: &'c [Server], nets: &'c [IpNet]) -> Option<(&'c Address, &'c IpNet)> {
    servers.iter().find_map(|Server { address, .. }| match address.host {
        Host::Ip(ip) => nets.iter().find(|net| net.contains(&ip)).map(|net| (address, net)),
        Host::Name(_) => None,
    })
}

#[cfg(test)]
#[path = "tests/kubernetes.rs"]
mod tests;
