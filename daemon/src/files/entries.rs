//! nodelb's own format of a service file: TOML with one `[[service]]` table per service. Pure.
//!
//! ```toml
//! [[service]]
//! name = "shop/web"
//! frontends = ["198.51.100.10:80/TCP", "[2001:db8::10]:80"]
//! backends = ["192.0.2.11:8080", { address = "[2001:db8::1]:8080", weight = 3 }]
//! ```

mod health_check;
mod values;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use nodelb_core::model::addr::{Family, Protocol};
use nodelb_core::model::health_check::HealthCheck;
use nodelb_core::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort,
    Source, TrafficPolicy,
};
use nodelb_kube::api::translate::DEFAULT_AFFINITY_SECONDS;
use toml::de::DeTable;

use self::values::{Affinity, At, BackendEntry, FrontendEntry, Timeout};
use super::{FileContent, Found};
use crate::document::{self, Fields, Problem, Problems};

/// Reads a file. `origin` becomes the origin of its objects.
///
/// # Errors
/// All problems of the file. If the syntax is wrong, only the syntax errors: other problems would be guesses.
pub(super) fn read(text: &str, origin: &Arc<str>) -> Result<FileContent, Vec<Problem>> {
    let mut problems = Problems::of(text);
    let document = document::parse(text, &mut problems);
    if !problems.is_empty() {
        return Err(problems.into_list());
    }
    let mut content = FileContent::default();
    let mut top = Fields::of(document.get_ref(), "");
    for (at, table) in top.tables("service", &mut problems) {
        if let Some(entry) = read_service(table, &at, &mut problems) {
            let line = Some(problems.line(at.start));
            let (service, slice) = entry.into_objects(origin);
            content.services.push(Found { line, value: Arc::new(service) });
            content.slices.extend(slice.map(|slice| Found { line, value: Arc::new(slice) }));
        }
    }
    top.refuse_others(&mut problems);
    if problems.is_empty() { Ok(content) } else { Err(problems.into_list()) }
}

/// A `[[service]]` table.
struct ServiceEntry {
    name: ServiceName,
    affinity_seconds: Option<u32>,
    internal_policy: TrafficPolicy,
    external_policy: TrafficPolicy,
    ports: Vec<PortEntry>,
    health_check: Option<Arc<HealthCheck>>,
}

/// A `[[service.port]]` table, or the equivalent keys of a service without such tables.
struct PortEntry {
    name: String,
    frontends: Vec<At<FrontendEntry>>,
    backends: Vec<At<BackendEntry>>,
}

/// Reads a service. `None` if it has too many problems for an entry; the problems are reported.
fn read_service(table: &DeTable<'_>, at: &Range<usize>, problems: &mut Problems) -> Option<ServiceEntry> {
    let mut fields = Fields::of(table, "");
    fields.describe("service: ");
    let has_name = table.contains_key("name");
    let name: Option<ServiceName> = fields.read("name", problems);
    if let Some(name) = &name {
        fields.describe(format!("service {name}: "));
    } else if !has_name {
        fields.problem(at, "has no name; add name = \"namespace/name\"", problems);
    }
    let affinity_seconds = read_affinity(&mut fields, problems);
    let internal_policy = fields.read("internal-traffic-policy", problems).unwrap_or_default();
    let external_policy = fields.read("external-traffic-policy", problems).unwrap_or_default();
    let ports = read_ports(&mut fields, at, problems);
    let health_check = health_check::read(&mut fields, &ports, problems).map(Arc::new);
    fields.refuse_others(problems);
    Some(ServiceEntry { name: name?, affinity_seconds, internal_policy, external_policy, ports, health_check })
}

fn read_affinity(fields: &mut Fields<'_, '_>, problems: &mut Problems) -> Option<u32> {
    let affinity = fields.read("session-affinity", problems).unwrap_or(Affinity::None);
    let timeout_at = fields.value("session-affinity-timeout").map(toml::Spanned::span);
    let timeout = fields.read("session-affinity-timeout", problems).map(|Timeout(seconds)| seconds);
    match (affinity, timeout_at) {
        (Affinity::ClientIp, _) => Some(timeout.unwrap_or(DEFAULT_AFFINITY_SECONDS)),
        (Affinity::None, Some(at)) => {
            let message = "session-affinity-timeout means nothing without session-affinity = \"client-ip\"; add that";
            fields.problem(&at, message, problems);
            None
        }
        (Affinity::None, None) => None,
    }
}

fn read_ports(fields: &mut Fields<'_, '_>, at: &Range<usize>, problems: &mut Problems) -> Vec<PortEntry> {
    let own_at = ["frontends", "backends"].into_iter().find_map(|key| fields.value(key).map(toml::Spanned::span));
    let tables = fields.tables("port", problems);
    let ports = if tables.is_empty() {
        vec![read_port(fields, at, problems)]
    } else {
        if let Some(own_at) = own_at {
            let message = "has [[service.port]] tables: frontends and backends belong into those, not beside them";
            fields.problem(&own_at, message, problems);
        }
        read_named_ports(fields, &tables, problems)
    };
    refuse_repeated_frontends(&ports, fields, problems);
    ports
}

fn read_named_ports<'a, 't>(
    fields: &Fields<'a, 't>,
    tables: &[(Range<usize>, &'a DeTable<'t>)],
    problems: &mut Problems,
) -> Vec<PortEntry> {
    let mut names = BTreeSet::new();
    let mut ports = Vec::new();
    for (at, table) in tables {
        let mut port = fields.nested(table, "port.");
        let name: String = port.read("name", problems).unwrap_or_default();
        if name.is_empty() && tables.len() > 1 {
            fields.problem(at, "has several ports, so each needs a name; add name = \"…\" to this one", problems);
        } else if !names.insert(name.clone()) {
            fields.problem(at, format_args!("has two ports named `{name}`; rename one, or join them"), problems);
        }
        ports.push(PortEntry { name, ..read_port(&mut port, at, problems) });
        port.refuse_others(problems);
    }
    ports
}

fn read_port(fields: &mut Fields<'_, '_>, at: &Range<usize>, problems: &mut Problems) -> PortEntry {
    let has_frontends = fields.value("frontends").is_some();
    let frontends: Option<Vec<_>> = fields.read("frontends", problems);
    if frontends.as_ref().map_or(!has_frontends, Vec::is_empty) {
        fields.problem(at, "has no frontends; add frontends = [\"ADDRESS:PORT/PROTOCOL\"]", problems);
    }
    let backends = fields.read("backends", problems).unwrap_or_default();
    let port = PortEntry { name: String::new(), frontends: frontends.unwrap_or_default(), backends };
    refuse_repeated_backends(&port, fields, problems);
    refuse_unserved_family(&port, fields, problems);
    port
}

fn refuse_repeated_frontends(ports: &[PortEntry], fields: &Fields<'_, '_>, problems: &mut Problems) {
    let mut seen = BTreeSet::new();
    for At(at, FrontendEntry(addr)) in ports.iter().flat_map(|port| &port.frontends) {
        if !seen.insert(addr) {
            fields.problem(at, format_args!("frontend {addr} is listed twice; remove one"), problems);
        }
    }
}

fn refuse_repeated_backends(port: &PortEntry, fields: &Fields<'_, '_>, problems: &mut Problems) {
    let mut seen = BTreeSet::new();
    for At(at, BackendEntry(Backend { addr, port, .. })) in &port.backends {
        if !seen.insert((addr, port)) {
            let socket = std::net::SocketAddr::new(addr.ip(), *port);
            fields.problem(at, format_args!("backend {socket} is listed twice; remove one, or use weight"), problems);
        }
    }
}

/// Rejects a frontend of a family that no backend has: it would always refuse, although the service has backends.
fn refuse_unserved_family(port: &PortEntry, fields: &Fields<'_, '_>, problems: &mut Problems) {
    let served: BTreeSet<Family> = port.backends.iter().map(|At(_, BackendEntry(b))| b.addr.family()).collect();
    let unserved = port.frontends.iter().filter(|At(_, FrontendEntry(addr))| !served.contains(&addr.addr.family()));
    for At(at, FrontendEntry(addr)) in unserved.filter(|_| !served.is_empty()) {
        let family = addr.addr.family();
        let message = format_args!("frontend {addr} has no {family} backend; add one, or remove the frontend");
        fields.problem(at, message, problems);
    }
}

impl ServiceEntry {
    /// The service, and the slice with its backends, if it lists any. Kubernetes does not permit the slice's name, so
    /// it cannot be equal to that of an EndpointSlice in another file.
    fn into_objects(self, file: &Arc<str>) -> (Service, Option<Slice>) {
        let origin = Origin { object: Arc::clone(file), ..Origin::default() };
        let slice_ports: Vec<_> = self.ports.iter().flat_map(PortEntry::slice_ports).collect();
        let slice = Slice {
            name: SliceName::new(&self.name.namespace, &format!("file:{}", self.name.name)),
            service: self.name.clone(),
            source: Source::Files,
            origin: origin.clone(),
            ports: slice_ports,
        };
        let service = Service {
            origin,
            ports: self.ports.iter().flat_map(PortEntry::service_ports).collect(),
            internal_policy: self.internal_policy,
            external_policy: self.external_policy,
            affinity_seconds: self.affinity_seconds,
            health_check: self.health_check,
            ..Service::new(self.name, Source::Files)
        };
        (service, (!slice.ports.is_empty()).then_some(slice))
    }
}

impl PortEntry {
    /// The protocols of its frontends. Each makes a separate port, with the same name and backends.
    fn protocols(&self) -> BTreeSet<Protocol> {
        self.frontends.iter().map(|At(_, FrontendEntry(addr))| addr.protocol).collect()
    }

    fn service_ports(&self) -> Vec<ServicePort> {
        let port_of = |protocol: Protocol| {
            let frontends = self.frontends.iter().map(|At(_, FrontendEntry(addr))| addr);
            let frontends = frontends.filter(|addr| addr.protocol == protocol);
            let specs = frontends.map(|l4| FrontendSpec { addr: l4.addr, port: l4.port, kind: FrontendKind::Static });
            ServicePort { name: self.name.as_str().into(), protocol, frontends: specs.collect() }
        };
        self.protocols().into_iter().map(port_of).collect()
    }

    fn slice_ports(&self) -> Vec<SlicePort> {
        if self.backends.is_empty() {
            return Vec::new();
        }
        let backends: Vec<_> = self.backends.iter().map(|At(_, BackendEntry(backend))| backend.clone()).collect();
        let port_of = |protocol| SlicePort { name: self.name.as_str().into(), protocol, backends: backends.clone() };
        self.protocols().into_iter().map(port_of).collect()
    }
}

#[cfg(test)]
#[path = "tests/entries.rs"]
mod tests;
