//! Queries the daemon's admin API in JSON. A route that the daemon does not have, or an answer that cannot be read, is
//! an empty answer.

use std::collections::BTreeSet;

use nodelb_core::model::service::ServiceName;
use nodelb_kube::api::scope::Selection;
use nodelb_kube::apiserver::address::{Address, Host};
use nodelb_kube::apiserver::one_shot::AddressHints;
use nodelb_report::problems::Reason;
use nodelb_report::time::Time;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::definition;
use crate::answer;
use crate::client::{self, At, Hanging};
use crate::diagnose::facts::{ApiserverRow, Daemon, Difference, FrontendRow, Maps, Packets, Probe, ServiceRow};
use crate::diagnose::rows;
use crate::endpoints::Endpoints;

/// Maximum number of addresses that are looked up one by one.
const MOST: usize = 16;

impl Endpoints {
    /// Queries the daemon about a service and about the apiservers.
    pub(super) async fn ask_daemon(&self, service: &ServiceName, now: Time) -> (Probe<Daemon>, AddressHints) {
        match self.reach(now).await {
            Ok(asked) => {
                let daemon = asked.about(service).await;
                let hints = asked.hints(&daemon.apiservers).await;
                (Probe::Ok(daemon), hints)
            }
            Err(why) => (Probe::Failed(why), AddressHints::default()),
        }
    }

    /// Returns what a running daemon knows about the apiservers; empty if no daemon runs.
    pub async fn hints(&self) -> AddressHints {
        let Ok(asked) = self.reach(answer::now()).await else { return AddressHints::default() };
        asked.hints(&asked.rows("/apiservers?output=json", "apiservers").await).await
    }

    /// Returns the service that a running daemon serves at one of the addresses, if it is not this one.
    pub(super) async fn another_at(&self, addresses: &[String], service: &ServiceName) -> Option<String> {
        if addresses.is_empty() {
            return None;
        }
        let asked = self.reach(answer::now()).await.ok()?;
        let own = service.to_string();
        for address in addresses.iter().take(MOST) {
            let rows = asked.claims(address).await;
            if let Some(row) = rows.into_iter().find(|row| !row.is_denied() && row.service != own) {
                return Some(row.service);
            }
        }
        None
    }

    /// Finds the first address that answers.
    async fn reach(&self, now: Time) -> Result<Asked<'_>, String> {
        let mut silent = Vec::new();
        for at in &self.admin {
            match client::inquire(at, "/healthz?output=json").await {
                Ok(_) => return Ok(Asked { at, now }),
                Err(error) => {
                    silent.push(format!("{at}: {error:#}"));
                    // The other addresses are those of the same daemon.
                    if error.is::<Hanging>() {
                        break;
                    }
                }
            }
        }
        Err(silent.join("; "))
    }
}

/// Maximum number of frontends that are traced.
const TRACED: usize = 4;

struct Asked<'e> {
    at: &'e At,
    /// Ages in the answers end now.
    now: Time,
}

impl Asked<'_> {
    /// Returns the answer; `Null` without one.
    async fn answer(&self, target: impl AsRef<str>) -> Value {
        match client::inquire(self.at, target.as_ref()).await {
            Ok((status, body)) if status.is_success() => serde_json::from_slice(&body).unwrap_or_default(),
            _ => Value::Null,
        }
    }

    async fn rows<T: DeserializeOwned>(&self, target: impl AsRef<str>, table: &str) -> Vec<T> {
        self.typed(&self.answer(target).await, table)
    }

    /// Returns the claims of all services to an address.
    async fn claims(&self, address: &str) -> Vec<FrontendRow> {
        self.rows(format!("/frontends?output=json&address={address}"), "frontends").await
    }

    /// Returns the rows of a table with ages in place of times.
    fn typed<T: DeserializeOwned>(&self, answer: &Value, table: &str) -> Vec<T> {
        let mut rows = rows::of(answer, table);
        rows.iter_mut().for_each(|row| rows::to_ages(row, self.now));
        rows::typed(rows)
    }

    async fn about(&self, service: &ServiceName) -> Daemon {
        let of = |route: &str| format!("{route}?output=json&service={service}");
        let (services, frontends, backends, status, sources, apiservers, maps) = tokio::join!(
            self.rows::<ServiceRow>(of("/services"), "services"),
            self.rows::<FrontendRow>(of("/frontends"), "frontends"),
            self.rows(of("/backends"), "backends"),
            self.answer("/status?output=json"),
            self.rows("/sources?output=json", "sources"),
            self.answer("/apiservers?output=json"),
            self.answer(of("/maps")),
        );
        // Hooks and sources do not belong to a service, so only the unfiltered answer contains them.
        let (differences, history) = tokio::join!(self.answer("/diff?output=json"), self.answer(of("/history")));
        let mut daemon = Daemon {
            checks: rows::typed(rows::of(&status, "checks")),
            problems: rows::typed(rows::of(&status, "problems")),
            definition: definition::find(&services, &sources, service),
            services,
            frontends,
            backends,
            sources,
            session: self.typed(&apiservers, "session").into_iter().next(),
            apiservers: self.typed(&apiservers, "apiservers"),
            maps: (!maps.is_null()).then(|| maps_of(&maps)),
            differences: concerning(service, rows::typed(rows::of(&differences, "differences"))),
            history: rows::of(&history, "history"),
            ..Daemon::default()
        };
        if daemon.services.is_empty() {
            let all: Vec<ServiceRow> = self.rows("/services?output=json", "services").await;
            daemon.names = all.into_iter().map(|row| row.service).collect();
        }
        daemon.traces = self.traces(&daemon.frontends).await;
        let settings = rows::of(&self.answer("/config?output=json").await, "config");
        daemon.cgroup = setting(&settings, "datapath.cgroup");
        daemon.health_checks = setting(&settings, "kubernetes.health-checks");
        daemon.selection = selection(&settings);
        let is_untranslated = daemon.problems.iter().any(|problem| problem.reason == Reason::OutsideUntranslated);
        if daemon.frontends.iter().any(|row| is_for_outside(row, is_untranslated)) {
            let (devices, drops, connections) = tokio::join!(
                self.answer("/devices?output=json"),
                self.rows(of("/drops"), "drops"),
                self.rows(of("/connections"), "connections"),
            );
            daemon.packets = rows::of(&devices, "packets").first().map(|state| Packets {
                translation: text(state, "translation"),
                reason: text(state, "reason"),
                devices: self.typed(&devices, "devices"),
                drops,
                connections,
                limits: self.typed(&maps, "limits"),
                snat_ports: setting(&settings, "packets.snat-ports"),
            });
        }
        daemon.rivals = self.rivals(&daemon.frontends).await;
        daemon
    }

    /// Returns what happens to a connection from this host according to the daemon.
    async fn traces(&self, frontends: &[FrontendRow]) -> Vec<Value> {
        let mut traces = Vec::new();
        for row in frontends.iter().filter(|row| !row.is_denied()).take(TRACED) {
            traces.extend(self.rows(format!("/trace?output=json&to={}", row.address), "verdict").await);
        }
        traces
    }

    /// Returns the other claims to the addresses that are in error or wait.
    async fn rivals(&self, frontends: &[FrontendRow]) -> Vec<FrontendRow> {
        let failed = frontends.iter().filter(|row| !row.is_in_maps());
        let hosts: BTreeSet<&str> = failed.filter_map(|row| Some(row.address.rsplit_once(':')?.0)).collect();
        let mut rivals = Vec::new();
        for host in hosts.into_iter().take(MOST) {
            rivals.extend(self.claims(host.trim_matches(['[', ']'])).await);
        }
        rivals
    }

    /// Returns the apiserver addresses that work, and those that nodelb balances itself.
    async fn hints(&self, rows: &[ApiserverRow]) -> AddressHints {
        let mut rows: Vec<&ApiserverRow> = rows.iter().take(MOST).collect();
        rows.sort_by_key(|row| !row.in_use);
        let mut hints = AddressHints::default();
        for row in rows {
            let Ok(address) = row.address.parse::<Address>() else { continue };
            let is_up = row.in_use || matches!(row.state.as_str(), "Healthy" | "Recovering");
            if self.balances(&address).await {
                hints.balanced.insert(address);
            } else if is_up {
                hints.direct.push(address);
            }
        }
        hints
    }

    async fn balances(&self, address: &Address) -> bool {
        let Host::Ip(ip) = address.host else { return false };
        let rows = self.claims(&ip.to_string()).await;
        rows.iter().any(|row| !row.is_denied() && row.address == format!("{address}/TCP"))
    }
}

/// Whether clients outside the node may connect to the address.
fn is_for_outside(row: &FrontendRow, is_untranslated: bool) -> bool {
    let is_kind = matches!(row.kind.as_str(), "NodePort" | "LoadBalancer" | "ExternalIP");
    is_kind
        || match &*row.outside {
            "" | "NodeOnly" => false,
            "Off" => is_untranslated,
            _ => true,
        }
}

/// Returns the value of a key, without quotes.
fn setting(settings: &[Value], key: &str) -> String {
    let row = settings.iter().find(|row| row["key"] == key);
    row.map(|row| text(row, "value").trim_matches('"').to_owned()).unwrap_or_default()
}

fn selection(settings: &[Value]) -> Selection {
    let names = |key: &str| {
        let row = settings.iter().find(|row| row["key"] == key);
        let names = row.and_then(|row| row["value"].as_array()).into_iter().flatten();
        names.filter_map(Value::as_str).collect::<Vec<_>>()
    };
    Selection {
        labels: setting(settings, "kubernetes.label-selector").into(),
        namespaces: names("kubernetes.namespaces").into_iter().map(Into::into).collect(),
        services: names("kubernetes.services").into_iter().filter_map(|name| name.parse().ok()).collect(),
    }
}

/// Returns the differences of the service, and those of what all services need.
fn concerning(service: &ServiceName, mut differences: Vec<Difference>) -> Vec<Difference> {
    let name = service.to_string();
    differences
        .retain(|row| row.service.as_ref() == Some(&name) || row.is_about_hooks() || row.whole_source().is_some());
    differences
}

fn text(row: &Value, column: &str) -> String {
    row.get(column).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn maps_of(answer: &Value) -> Maps {
    let mut maps = Maps::default();
    for row in rows::of(answer, "frontends") {
        maps.frontends.insert(text(&row, "address"), text(&row, "service"));
    }
    for row in rows::of(answer, "slots") {
        let key = (text(&row, "service"), text(&row, "view"));
        maps.slots.entry(key).or_default().push(text(&row, "backend"));
    }
    maps.node_addresses = rows::of(answer, "node_addresses").iter().map(|row| text(row, "address")).collect();
    maps
}
