//! The `[kubernetes]` section: the format of an apiserver, and the checks of combinations of keys.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use nodelb_core::model::service::ServiceName;
use nodelb_kube::api::scope::MAX_NARROW;
use nodelb_kube::api::selector;
use nodelb_kube::apiserver::address::{Address, Host, Server};
use nodelb_kube::apiserver::url::Shown;
use rustls::pki_types::ServerName;
use serde::{Deserialize, Deserializer};

use super::values::{Check, Setting};
use crate::document;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ServerTable {
    #[serde(deserialize_with = "address")]
    address: Address,
    #[serde(default, deserialize_with = "tls_server_name")]
    tls_server_name: Option<Arc<str>>,
}

fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Address, D::Error> {
    document::text(from, "a string", str::parse)
}

fn tls_server_name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Arc<str>>, D::Error> {
    document::text(from, "a string", |name| match ServerName::try_from(name) {
        Ok(_) => Ok(Some(name.into())),
        Err(_) => Err(format!("`{name}` is not a valid name in a certificate")),
    })
}

impl Setting for Server {
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let ServerTable { address, tls_server_name } =
            document::table_such_as(from, "a table such as { address = \"192.0.2.1:6443\" }")?;
        Ok(Self { address, tls_server_name })
    }

    fn to_toml(&self) -> toml::Value {
        let address = Some(("address".to_owned(), self.address.to_string().into()));
        let name = self.tls_server_name.as_deref().map(|name| ("tls-server-name".to_owned(), name.into()));
        toml::Value::Table([address, name].into_iter().flatten().collect())
    }
}

pub(super) fn each_once(servers: &[Server]) -> Check {
    let mut seen = BTreeSet::new();
    match servers.iter().find(|server| !seen.insert(&server.address)) {
        Some(twice) => Err(format!("{} is listed twice; remove one", twice.address)),
        None => Ok(()),
    }
}

pub(super) fn label_selector(selector: &str) -> Check {
    selector::check(selector)
}

/// The names of namespaces that nodelb reads one by one.
pub(super) fn namespaces(names: &[String]) -> Check {
    names.iter().try_for_each(|name| object_name("namespace", name))?;
    few(names)
}

/// The names of Services that nodelb reads one by one.
pub(super) fn services(names: &[ServiceName]) -> Check {
    for service in names {
        object_name("namespace", &service.namespace)?;
        object_name("Service", &service.name)?;
    }
    few(names)
}

fn object_name(what: &str, name: &str) -> Check {
    if selector::is_object_name(name) {
        return Ok(());
    }
    let name = name.escape_debug();
    Err(format!(
        "`{name}` is not the name of a {what}: lower-case letters, digits and `-`, at most 63 of them; correct it"
    ))
}

fn few<T: Ord + fmt::Display>(names: &[T]) -> Check {
    let mut seen = BTreeSet::new();
    match names.iter().find(|name| !seen.insert(*name)) {
        Some(twice) => Err(format!("{twice} is listed twice; remove one")),
        None if names.len() > MAX_NARROW => {
            let what = "each is watched on its own; remove some, or leave the key out to read the whole cluster";
            Err(format!("more than {MAX_NARROW} entries ({}): {what}", names.len()))
        }
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
        wrong_at("token-file", "needs ca-file too, so that the token is sent only to a server that is verified".into());
    }
    if !kubeconfig && ca && !token {
        wrong_at("ca-file", "needs token-file too: an apiserver requires credentials".into());
    }
    if !kubeconfig && !token && !ca && !section.apiserver.is_empty() {
        wrong_at("apiserver", "credentials are missing; set kubeconfig, or token-file and ca-file".into());
    }
    if !kubeconfig && token && ca && section.apiserver.is_empty() {
        let message =
            "no apiserver is configured for it; set apiserver = [{ address = \"HOST:PORT\" }], or use kubeconfig";
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
