//! The `[kubernetes]` section: its keys, the format of an apiserver, and the checks of combinations of keys.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use nodelb_core::model::forward::Forward;
use nodelb_core::model::service::ServiceName;
use nodelb_kube::api::scope::{MAX_NARROW, Selection};
use nodelb_kube::api::selector;
use nodelb_kube::api::translate::ForwardByClass;
use nodelb_kube::apiserver::address::{Address, Host, Server};
use nodelb_kube::apiserver::url::Shown;
use nodelb_sources::document;
use rustls::pki_types::ServerName;
use serde::{Deserialize, Deserializer};

use super::keys::{Key, Section, section};
use super::values::{Check, Setting, file_or_credential, once, reachable};

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

impl Setting for ForwardByClass {
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        document::table_such_as(from, "a table such as { \"example.com/tunnel\" = \"tunnel\" }")
    }

    fn to_toml(&self) -> toml::Value {
        let entry = |(class, forward): (&String, &Forward)| (class.clone(), forward.to_string().into());
        toml::Value::Table(self.iter().map(entry).collect())
    }
}

fn each_once(servers: &[Server]) -> Check {
    once(servers.iter().map(|server| &server.address))
}

/// The names of namespaces that nodelb reads one by one.
fn namespaces(names: &[String]) -> Check {
    names.iter().try_for_each(|name| object_name("namespace", name))?;
    few(names)
}

/// The names of Services that nodelb reads one by one.
fn services(names: &[ServiceName]) -> Check {
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

fn classes(forward: &ForwardByClass) -> Check {
    forward.keys().find(|class| !selector::is_label(class)).map_or(Ok(()), |class| {
        let class = class.escape_debug();
        Err(format!("`{class}` is not a load balancer class; correct it (expected like example.com/tunnel)"))
    })
}

fn few<T: Ord + fmt::Display>(names: &[T]) -> Check {
    once(names)?;
    if names.len() <= MAX_NARROW {
        return Ok(());
    }
    let what = "each is watched on its own; remove some, or leave the key out to read the whole cluster";
    Err(format!("more than {MAX_NARROW} entries ({}): {what}", names.len()))
}

fn proxy_or_empty(proxy: &str) -> Check {
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

section! {
    /// The Kubernetes cluster. Disabled unless kubeconfig or apiserver is set.
    Kubernetes, "kubernetes", needs_restart = true, together = Kubernetes::together;

    /// Read services from Kubernetes. If "false" at a start, nodelb removes its Kubernetes services. Without the other
    /// keys, it keeps them as last known and logs a warning.
    enabled: bool = true;

    /// Kubeconfig; nodelb uses the server and the credentials of its current context, and reads the file again when it
    /// changes. Instead of a path, here and in the next two keys, "credential:nodelb.kubeconfig" (nodelb.token,
    /// nodelb.ca) is a credential that systemd copies from /etc/credstore at the start: for files that change, set a path.
    kubeconfig: PathBuf = PathBuf::new(), file_or_credential;

    /// File with a bearer token, if kubeconfig is not set.
    token_file: PathBuf = PathBuf::new(), file_or_credential;

    /// Certificate authority of the API servers in PEM, if kubeconfig is not set.
    ca_file: PathBuf = PathBuf::new(), file_or_credential;

    /// HTTP proxy to the API servers, such as "http://192.0.2.9:3128". Proxy variables of the environment are ignored.
    proxy: String = String::new(), proxy_or_empty;

    /// Service CIDRs of the cluster: addresses in them are never used as API servers. nodelb adds those that the
    /// cluster reports.
    service_cidrs: Vec<IpNet> = Vec::new();

    /// API servers in order of preference, before that of the kubeconfig. Each has an address, HOST:PORT, preferably an
    /// IP address, and a tls-server-name if the certificate does not contain that host:
    ///   apiserver = [
    ///     { address = "192.0.2.1:6443", tls-server-name = "kubernetes" },
    ///   ]
    apiserver: Vec<Server> = Vec::new(), each_once;

    /// Label selector for Services, such as "team=shop", which the API server evaluates.
    label_selector: String = String::new(), selector::check;

    /// The only namespaces that nodelb reads, at most 32; a Role in each is sufficient, see rbac-namespaces.yaml.
    namespaces: Vec<String> = Vec::new(), namespaces;

    /// The only Services that nodelb reads, such as "default/kubernetes", at most 32, instead of the previous two keys.
    services: Vec<ServiceName> = Vec::new(), services;

    /// Direct return for Services of a load balancer class (spec.loadBalancerClass) without the annotation
    /// nodelb.io/forward, such as { "example.com/tunnel" = "tunnel" }, or "direct".
    forward: ForwardByClass = ForwardByClass::new(), classes;

    /// Listen addresses of the kube-proxy-compatible health endpoint (/healthz, /livez) that cloud load balancers
    /// probe. Reachable from the network. [::] covers IPv4 and IPv6; empty disables it.
    healthz_addresses: Vec<SocketAddr> = vec![([0_u16; 8], 10256).into()], reachable;

    /// Check the backends of Services that ask for it with the annotation nodelb.io/health-check. Every user who may
    /// write Services and EndpointSlices can then make each node connect to any address, up to ten times a second.
    health_checks: bool = false;

    /// Whether this host has a Node object. Set it to "false" on a host without a kubelet: nodelb then reads no Nodes,
    /// and a missing one is no problem.
    node_object: bool = true;

    /// Write a Kubernetes Event for a Service that is held, refused, in conflict with another one or without backends:
    /// one Event per reason and node, repeated with a count.
    events: bool = false;
}

impl Kubernetes {
    pub fn selection(&self) -> Selection {
        Selection {
            labels: self.label_selector.trim().into(),
            namespaces: self.namespaces.iter().map(|name| name.as_str().into()).collect(),
            services: self.services.clone(),
        }
    }

    fn together(&self) -> Vec<(&'static str, String)> {
        let is_set = |path: &Path| !path.as_os_str().is_empty();
        let (kubeconfig, token, ca) = (is_set(&self.kubeconfig), is_set(&self.token_file), is_set(&self.ca_file));
        let twice = "kubeconfig has the credentials already; leave out one of the two";
        let no_ca = "needs ca-file too, so that the token is sent only to a server that is verified";
        let no_token = "needs token-file too: an apiserver requires credentials";
        let no_credentials = "credentials are missing; set kubeconfig, or token-file and ca-file";
        let no_server =
            "no apiserver is configured for it; set apiserver = [{ address = \"HOST:PORT\" }], or use kubeconfig";
        let found = match (kubeconfig, token, ca) {
            (true, ..) => [token.then_some(("token-file", twice)), ca.then_some(("ca-file", twice))],
            (false, true, false) => [Some(("token-file", no_ca)), None],
            (false, false, true) => [Some(("ca-file", no_token)), None],
            (false, true, true) => [self.apiserver.is_empty().then_some(("token-file", no_server)), None],
            (false, false, false) => [(!self.apiserver.is_empty()).then_some(("apiserver", no_credentials)), None],
        };
        let mut wrong: Vec<_> = found.into_iter().flatten().map(|(key, message)| (key, message.to_owned())).collect();
        let mut wrong_at = |key, message: String| wrong.push((key, message));
        if let Some((server, net)) = in_service_cidr(&self.apiserver, &self.service_cidrs) {
            let message = format!(
                "{server} is a service address (it lies in {net}), and nodelb never translates its own connections; \
                 write an address the apiserver itself listens on"
            );
            wrong_at("apiserver", message);
        }
        let narrowed =
            [("namespaces", !self.namespaces.is_empty()), ("label-selector", !self.label_selector.is_empty())];
        for (key, _) in narrowed.into_iter().filter(|(_, is_set)| *is_set && !self.services.is_empty()) {
            let message = format!(
                "kubernetes.services already names each Service; leave out kubernetes.{key} or kubernetes.services"
            );
            wrong_at(key, message);
        }
        wrong
    }
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
