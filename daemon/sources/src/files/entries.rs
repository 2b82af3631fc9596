//! nodelb's own format of a service file: TOML with one `[[service]]` table per service. Pure.
//!
//! ```toml
//! [[service]]
//! name = "shop/web"
//! frontends = ["198.51.100.10:80/TCP", "[2001:db8::10]:80"]
//! backends = ["192.0.2.11:8080", { address = "[2001:db8::1]:8080", weight = 3 }, "web.example.com:8080"]
//! ```

mod values;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::ops::Range;
use std::sync::Arc;

use nodelb_core::model::addr::{Family, Protocol};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::health_check::HealthCheck;
use nodelb_core::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort,
    Source, TrafficPolicy,
};
use nodelb_kube::api::health_check::{INTERVAL, Kind, Settings, Start, TIMEOUT, without_tcp};
use nodelb_kube::api::translate::DEFAULT_AFFINITY_SECONDS;
use serde::Deserialize;
use toml::Spanned;
use toml::de::DeTable;

use self::values::{BackendEntry, BackendsFrom, Frontend, HostName, Limited, Status, UrlPath};
use super::content::{FileContent, Found};
use super::merge::INLINE;
use crate::document::{self, Problem, Problems, Read, Table};
use nodelb_core::model::named::{DnsName, Named, Question, RecordType, UNSPECIFIED};

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    /// The services. Each is deserialized separately.
    service: Vec<Table<serde::de::IgnoredAny>>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct ServiceTable {
    name: Option<ServiceName>,
    session_affinity: Affinity,
    /// From a second to a year: longer ones are mistakes.
    session_affinity_timeout: Option<Spanned<Limited<1_000, 31_536_000_000, 1_000>>>,
    internal_traffic_policy: TrafficPolicy,
    external_traffic_policy: TrafficPolicy,
    /// Whether clients outside the node may connect.
    outside: bool,
    forward: Option<Spanned<Forward>>,
    frontends: Option<Spanned<Vec<Spanned<Frontend>>>>,
    backends: Option<Spanned<Vec<Spanned<BackendEntry>>>>,
    backends_from: Option<Spanned<BackendsFrom>>,
    port: Vec<Spanned<Table<PortTable>>>,
    health_check: Option<Spanned<Table<HealthCheckTable>>>,
}

/// A `[[service.port]]` table, or the equivalent keys of a service without such tables.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct PortTable {
    name: String,
    frontends: Vec<Spanned<Frontend>>,
    backends: Vec<Spanned<BackendEntry>>,
    backends_from: Option<Spanned<BackendsFrom>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Affinity {
    #[default]
    None,
    ClientIp,
}

/// Reads a file. `origin` becomes the origin of its objects.
///
/// # Errors
/// All problems of the file. If the syntax is wrong, only the syntax errors: other problems would be guesses.
pub(super) fn read(text: &str, origin: &Arc<str>) -> Result<FileContent, Vec<Problem>> {
    let mut problems = Problems::new(text);
    let document = document::parse(text, &mut problems);
    if !problems.is_empty() {
        return Err(problems.into_list());
    }
    document::read::<File>(document.span(), document.get_ref(), "", &mut problems);
    let mut content = FileContent::default();
    let services = document.get_ref().get("service").and_then(|services| services.get_ref().as_array());
    for service in services.into_iter().flatten() {
        let (at, Some(table)) = (service.span(), service.get_ref().as_table()) else { continue };
        if let Some((service, slice, named)) = read_service(&at, table, origin, &mut problems) {
            let line = Some(problems.line(at.start));
            content.services.push(Found { line, value: Arc::new(service) });
            content.slices.extend(slice.map(|slice| Found { line, value: Arc::new(slice) }));
            content.named.extend(named.into_iter().map(Arc::new));
        }
    }
    if problems.is_empty() { Ok(content) } else { Err(problems.into_list()) }
}

/// A service while it is checked.
struct Entry<'r> {
    /// The beginning of messages, such as `service shop/web: `.
    object: &'r str,
    /// The paths of the keys with values that were refused. What these values would mean is unknown.
    refused: &'r [String],
    ports: Vec<(Range<usize>, PortTable)>,
}

/// Reads a service. `None` if it has no name or no valid health check; the problems are reported.
fn read_service(
    at: &Range<usize>,
    table: &DeTable<'_>,
    file: &Arc<str>,
    problems: &mut Problems,
) -> Option<(Service, Option<Slice>, Vec<Named>)> {
    let name = table.get("name").and_then(|name| name.get_ref().as_str()?.parse::<ServiceName>().ok());
    let object = name.as_ref().map_or_else(|| "service: ".to_owned(), |name| format!("service {name}: "));
    let Read { value: mut service, refused } = document::read::<ServiceTable>(at.clone(), table, &object, problems);
    let mut entry = Entry { object: &object, refused: &refused, ports: Vec::new() };
    if service.name.is_none() && !entry.has_refused("name") {
        entry.problem(at, "has no name; add name = \"namespace/name\"", problems);
    }
    entry.ports = entry.read_ports(&mut service, at, problems);
    entry.check_ports(wraps(&service), problems);
    let affinity_seconds = read_affinity(&service, &entry, problems);
    let forward = read_forward(&service, &entry, problems);
    let health_check = match service.health_check.take() {
        Some(table) => {
            let at = table.span();
            Some(Arc::new(table.into_inner().0.check(&at, &entry, problems)?))
        }
        None => None,
    };
    let origin = Origin { object: Arc::clone(file), ..Origin::default() };
    let name = service.name?;
    let slice = Slice {
        name: SliceName::new(&name.namespace, &format!("{INLINE}{}", name.name)),
        service: name.clone(),
        source: Source::Files,
        origin: origin.clone(),
        ports: entry.ports.iter().flat_map(|(_, port)| port.slice_ports()).collect(),
        problem: None,
    };
    let named = entry.ports.iter().flat_map(|(_, port)| port.named(&name)).collect();
    let service = Service {
        origin,
        ports: entry.ports.iter().flat_map(|(_, port)| port.service_ports()).collect(),
        internal_policy: service.internal_traffic_policy,
        external_policy: service.external_traffic_policy,
        is_outside: service.outside,
        forward,
        affinity_seconds,
        health_check,
        ..Service::new(name, Source::Files)
    };
    Some((service, (!slice.ports.is_empty()).then_some(slice), named))
}

fn read_affinity(service: &ServiceTable, entry: &Entry<'_>, problems: &mut Problems) -> Option<u32> {
    let timeout = service.session_affinity_timeout.as_ref();
    match (service.session_affinity, timeout) {
        (Affinity::ClientIp, None) => Some(DEFAULT_AFFINITY_SECONDS),
        (Affinity::ClientIp, Some(timeout)) => u32::try_from(timeout.get_ref().0.as_secs()).ok(),
        (Affinity::None, Some(timeout)) if !entry.has_refused("session-affinity") => {
            let message = "session-affinity-timeout has no effect without session-affinity = \"client-ip\"; add that";
            entry.problem(&timeout.span(), message, problems);
            None
        }
        (Affinity::None, _) => None,
    }
}

/// Whether packets to an IPv4 frontend may reach IPv6 backends: `nodelb_core::compile::key` makes the same decision.
fn wraps(service: &ServiceTable) -> bool {
    let is_tunnel = service.forward.as_ref().is_some_and(|forward| *forward.get_ref() == Forward::Tunnel);
    is_tunnel && [service.internal_traffic_policy, service.external_traffic_policy] == [TrafficPolicy::Cluster; 2]
}

/// Packets that are forwarded as they are keep the port, so backends must have that of the frontend; a tunnel may end at
/// another nodelb, which translates it.
fn read_forward(service: &ServiceTable, entry: &Entry<'_>, problems: &mut Problems) -> Forward {
    let Some(forward) = &service.forward else { return Forward::default() };
    let (at, forward) = (forward.span(), *forward.get_ref());
    if forward != Forward::Translate && !service.outside && !entry.has_refused("outside") {
        let message = format!("forward = \"{forward}\" is for clients outside the node; add outside = true");
        entry.problem(&at, &message, problems);
    }
    if forward == Forward::Direct {
        for (_, port) in &entry.ports {
            let mut frontends = port.frontends.iter().map(|frontend| frontend.get_ref().0.port);
            let Some(first) = frontends.next() else { continue };
            let mut others = frontends.chain(port.backends.iter().map(|backend| backend.get_ref().backend.port));
            if let Some(other) = others.rfind(|other| *other != first) {
                let message = format!(
                    "forward = \"direct\" does not change ports, but there are {first} and {other}; use the same port at \
                     frontends and backends, or another value of forward"
                );
                entry.problem(&at, &message, problems);
            }
        }
    }
    forward
}

impl Entry<'_> {
    fn problem(&self, at: &Range<usize>, message: &str, problems: &mut Problems) {
        problems.push(at, format!("{}{message}", self.object));
    }

    /// Whether a value of this key was refused, in any table of the service.
    fn has_refused(&self, key: &str) -> bool {
        self.refused.iter().any(|path| format!(".{path}.").contains(&format!(".{key}.")))
    }

    /// The ports of the service, checked each.
    fn read_ports(
        &self,
        service: &mut ServiceTable,
        at: &Range<usize>,
        problems: &mut Problems,
    ) -> Vec<(Range<usize>, PortTable)> {
        let (frontends, backends) = (service.frontends.take(), service.backends.take());
        let backends_from = service.backends_from.take();
        if service.port.is_empty() {
            let frontends = frontends.map(Spanned::into_inner).unwrap_or_default();
            let backends = backends.map(Spanned::into_inner).unwrap_or_default();
            return vec![(at.clone(), PortTable { name: String::new(), frontends, backends, backends_from })];
        }
        let own = [frontends.map(|it| it.span()), backends.map(|it| it.span()), backends_from.map(|it| it.span())];
        if let Some(own_at) = own.into_iter().flatten().next() {
            let message = "has [[service.port]] tables: move frontends, backends and backends-from into those";
            self.problem(&own_at, message, problems);
        }
        let ports: Vec<_> = service.port.drain(..).map(|port| (port.span(), port.into_inner().0)).collect();
        let mut names = BTreeSet::new();
        for (at, port) in &ports {
            if port.name.is_empty() && ports.len() > 1 {
                self.problem(at, "has several ports, so each needs a name; add name = \"…\" to this one", problems);
            } else if !names.insert(&port.name) {
                self.problem(at, &format!("has two ports named `{}`; rename one, or merge them", port.name), problems);
            }
        }
        ports
    }

    fn check_ports(&self, wraps: bool, problems: &mut Problems) {
        let mut seen = BTreeSet::new();
        for (at, port) in &self.ports {
            if port.frontends.is_empty() && !self.has_refused("frontends") {
                self.problem(at, "has no frontends; add frontends = [\"ADDRESS:PORT/PROTOCOL\"]", problems);
            }
            for (at, addr) in port.frontends.iter().map(|frontend| (frontend.span(), frontend.get_ref().0)) {
                if !seen.insert(addr) {
                    self.problem(&at, &format!("frontend {addr} is listed twice; remove one"), problems);
                }
            }
            self.check_backends(port, wraps, problems);
        }
    }

    /// Rejects a backend that is listed twice, and a frontend of a family that no backend has: it would always refuse,
    /// although the service has backends. The families of a name are known only when it is resolved.
    fn check_backends(&self, port: &PortTable, wraps: bool, problems: &mut Problems) {
        let mut seen = BTreeSet::new();
        for (at, BackendEntry { name, backend }) in port.backends.iter().map(|b| (b.span(), b.get_ref())) {
            if !seen.insert((name, backend.addr, backend.port)) {
                let socket = match name {
                    Some(name) => format!("{name}:{}", backend.port),
                    None => SocketAddr::new(backend.addr.ip(), backend.port).to_string(),
                };
                self.problem(&at, &format!("backend {socket} is listed twice; remove one, or use weight"), problems);
            }
        }
        let has_names = port.backends_from.is_some() || seen.iter().any(|(name, ..)| name.is_some());
        let served: BTreeSet<Family> = seen.into_iter().map(|(_, addr, _)| addr.family()).collect();
        if served.is_empty() || has_names || self.has_refused("backends") || self.has_refused("backends-from") {
            return;
        }
        for (at, addr) in port.frontends.iter().map(|frontend| (frontend.span(), frontend.get_ref().0)) {
            let family = addr.addr.family();
            // There are backends, which are then IPv6 ones.
            let is_wrapped = wraps && family == Family::Ipv4;
            if !served.contains(&family) && !is_wrapped {
                let message = format!("frontend {addr} has no {family} backend; add one, or remove the frontend");
                self.problem(&at, &message, problems);
            }
        }
    }
}

impl PortTable {
    /// The protocols of its frontends. Each makes a separate port, with the same name and backends.
    fn protocols(&self) -> BTreeSet<Protocol> {
        self.frontends.iter().map(|frontend| frontend.get_ref().0.protocol).collect()
    }

    fn service_ports(&self) -> Vec<ServicePort> {
        let port_of = |protocol: Protocol| {
            let frontends = self.frontends.iter().map(|frontend| frontend.get_ref().0);
            let frontends = frontends.filter(|addr| addr.protocol == protocol);
            let specs = frontends.map(|l4| FrontendSpec { addr: l4.addr, port: l4.port, kind: FrontendKind::Static });
            ServicePort { name: self.name.as_str().into(), protocol, frontends: specs.collect() }
        };
        self.protocols().into_iter().map(port_of).collect()
    }

    fn slice_ports(&self) -> Vec<SlicePort> {
        let addresses = self.backends.iter().map(Spanned::get_ref).filter(|entry| entry.name.is_none());
        let backends: Vec<_> = addresses.map(|entry| entry.backend.clone()).collect();
        if backends.is_empty() {
            return Vec::new();
        }
        let port_of = |protocol| SlicePort { name: self.name.as_str().into(), protocol, backends: backends.clone() };
        self.protocols().into_iter().map(port_of).collect()
    }

    /// The backends of this port that have names: a question for each family of its frontends, or for SRV records.
    fn named(&self, service: &ServiceName) -> Vec<Named> {
        let families: BTreeSet<Family> = self.frontends.iter().map(|it| it.get_ref().0.addr.family()).collect();
        let families: Vec<Family> = families.into_iter().collect();
        let new = |name: &DnsName, record, backend: &Backend| Named {
            // Kubernetes does not permit this name, so it cannot be equal to that of an EndpointSlice in another file.
            slice: SliceName::new(
                &service.namespace,
                &format!("dns:{}:{}:{record}:{name}:{}", service.name, self.name, backend.port),
            ),
            service: service.clone(),
            question: Question { name: name.clone(), record },
            port: self.name.as_str().into(),
            protocols: self.protocols().into_iter().collect(),
            families: families.clone(),
            backend: backend.clone(),
        };
        let mut named = Vec::new();
        for BackendEntry { name, backend } in self.backends.iter().map(Spanned::get_ref) {
            let Some(name) = name else { continue };
            named.extend(families.iter().map(|family| new(name, RecordType::of(*family), backend)));
        }
        if let Some(BackendsFrom(name)) = self.backends_from.as_ref().map(Spanned::get_ref) {
            named.push(new(name, RecordType::Srv, &Backend::new(UNSPECIFIED, 0)));
        }
        named
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct HealthCheckTable {
    r#type: Option<Kind>,
    port: Option<NonZeroU16>,
    path: Option<Spanned<UrlPath>>,
    host: Option<Spanned<HostName>>,
    expected_status: Option<Spanned<Status>>,
    interval: Option<Limited<{ INTERVAL.0 }, { INTERVAL.1 }, 1>>,
    timeout: Option<Spanned<Limited<{ TIMEOUT.0 }, { TIMEOUT.1 }, 1>>>,
    rise: Option<Spanned<u32>>,
    fall: Option<Spanned<u32>>,
    start: Option<Start>,
    last_resort: Option<bool>,
}

impl HealthCheckTable {
    /// The table as a health check. `None` if it has no type, which is reported. `at` is the position of the table.
    fn check(self, at: &Range<usize>, entry: &Entry<'_>, problems: &mut Problems) -> Option<HealthCheck> {
        if self.r#type.is_none() && !entry.has_refused("health-check.type") {
            entry.problem(at, "health-check has no type; add type = \"tcp\" or type = \"http\"", problems);
        }
        if self.port.is_none() && !entry.has_refused("health-check.port") {
            refuse_unreachable(at, entry, problems);
        }
        let span = |key: &str| match key {
            "path" => self.path.as_ref().map(Spanned::span),
            "host" => self.host.as_ref().map(Spanned::span),
            "expected-status" => self.expected_status.as_ref().map(Spanned::span),
            "timeout" => self.timeout.as_ref().map(Spanned::span),
            "rise" => self.rise.as_ref().map(Spanned::span),
            "fall" => self.fall.as_ref().map(Spanned::span),
            _ => None,
        };
        self.settings().check(|key, message| {
            let at = span(key).unwrap_or_else(|| at.clone());
            entry.problem(&at, &format!("health-check.{key}: {message}"), problems);
        })
    }

    fn settings(&self) -> Settings {
        Settings {
            kind: self.r#type,
            port: self.port,
            path: self.path.as_ref().map(|path| Arc::clone(&path.get_ref().0)),
            host: self.host.as_ref().map(|host| Arc::clone(&host.get_ref().0)),
            expected_status: self.expected_status.as_ref().map(|status| status.get_ref().0.clone()),
            interval: self.interval.map(|Limited(interval)| interval),
            timeout: self.timeout.as_ref().map(|timeout| timeout.get_ref().0),
            rise: self.rise.as_ref().map(|rise| *rise.get_ref()),
            fall: self.fall.as_ref().map(|fall| *fall.get_ref()),
            start: self.start,
            last_resort: self.last_resort,
        }
    }
}

/// Rejects a check that cannot be answered at the backend's own port.
fn refuse_unreachable(at: &Range<usize>, entry: &Entry<'_>, problems: &mut Problems) {
    let problem = |(_, port): &(Range<usize>, PortTable)| {
        without_tcp(&port.name, &port.protocols().into_iter().collect::<Vec<_>>())
    };
    if let Some(problem) = entry.ports.iter().find_map(problem) {
        let message = format!(
            "health-check: {problem}; add port = NUMBER with a port at which each backend accepts TCP connections"
        );
        entry.problem(at, &message, problems);
    }
}

#[cfg(test)]
#[path = "tests/entries.rs"]
mod tests;
