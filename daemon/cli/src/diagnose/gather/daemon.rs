//! Queries the daemon's admin API in JSON. A route that the daemon does not have, or an answer that cannot be read, is
//! an empty answer.

use std::collections::BTreeSet;

use nodelb_core::model::service::ServiceName;
use nodelb_core::model::time::Time;
use nodelb_kube::apiserver::address::{Address, Host};
use nodelb_kube::apiserver::one_shot::AddressHints;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::definition;
use crate::answer;
use crate::client::{self, At, Hanging};
use crate::diagnose::facts::{ApiserverRow, Daemon, FrontendRow, LimitRow, Maps, Packets, Probe, ServiceRow};
use crate::diagnose::rows::{self, Difference};
use crate::endpoints::Endpoints;

/// Maximum number of addresses that are looked up one by one.
const MOST: usize = 16;

impl Endpoints {
    /// Queries the daemon about a service and about the apiservers.
    pub(super) async fn ask_daemon(&self, service: &ServiceName, now: Time) -> (Probe<Daemon>, AddressHints) {
        match self.reach().await {
            Ok(at) => {
                let asked = Asked { at, now };
                let daemon = asked.about(service).await;
                let hints = asked.hints(&daemon.apiservers).await;
                (Probe::Ok(daemon), hints)
            }
            Err(why) => (Probe::Failed(why), AddressHints::default()),
        }
    }

    /// Returns what a running daemon knows about the apiservers; empty if no daemon runs.
    pub async fn hints(&self) -> AddressHints {
        let Ok(at) = self.reach().await else { return AddressHints::default() };
        let asked = Asked { at, now: answer::now() };
        let apiservers: Vec<ApiserverRow> = asked.rows("/apiservers?output=json".into(), "apiservers").await;
        asked.hints(&apiservers).await
    }

    /// Returns the service that a running daemon serves at one of the addresses, if it is not this one.
    pub(super) async fn another_at(&self, addresses: &[String], service: &ServiceName) -> Option<String> {
        if addresses.is_empty() {
            return None;
        }
        let asked = Asked { at: self.reach().await.ok()?, now: answer::now() };
        let own = service.to_string();
        for address in addresses.iter().take(MOST) {
            let rows = asked.claims(address).await;
            if let Some(row) = rows.into_iter().find(|row| !row.is_denied() && row.service != own) {
                return Some(row.service);
            }
        }
        None
    }

    /// Returns the first address that answers.
    async fn reach(&self) -> Result<At, String> {
        let mut silent = Vec::new();
        for at in &self.admin {
            match client::inquire(at, "/healthz?output=json").await {
                Ok(_) => return Ok(at.clone()),
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

struct Asked {
    at: At,
    /// Ages in the answers end now.
    now: Time,
}

impl Asked {
    async fn answer(&self, target: String) -> Option<Value> {
        let (status, body) = client::inquire(&self.at, &target).await.ok()?;
        serde_json::from_slice(&body).ok().filter(|_| status.is_success())
    }

    async fn rows<T: DeserializeOwned>(&self, target: String, table: &str) -> Vec<T> {
        self.typed(rows::of(&self.answer(target).await.unwrap_or_default(), table))
    }

    /// Returns the claims of all services to an address.
    async fn claims(&self, address: &str) -> Vec<FrontendRow> {
        self.rows(format!("/frontends?output=json&address={address}"), "frontends").await
    }

    /// The rows with ages in place of times.
    fn typed<T: DeserializeOwned>(&self, mut rows: Vec<Value>) -> Vec<T> {
        rows.iter_mut().for_each(|row| rows::to_ages(row, self.now));
        typed_as_is(rows)
    }

    async fn about(&self, service: &ServiceName) -> Daemon {
        let of = |route: &str| format!("{route}?output=json&service={service}");
        let (services, frontends, backends, status, sources, apiservers, maps) = tokio::join!(
            self.rows::<ServiceRow>(of("/services"), "services"),
            self.rows::<FrontendRow>(of("/frontends"), "frontends"),
            self.rows(of("/backends"), "backends"),
            self.answer("/status?output=json".into()),
            self.rows("/sources?output=json".into(), "sources"),
            self.answer("/apiservers?output=json".into()),
            self.answer(of("/maps")),
        );
        // Hooks and sources do not belong to a service, so only the unfiltered answer contains them.
        let (differences, history) = tokio::join!(self.answer("/diff?output=json".into()), self.answer(of("/history")));
        let (apiservers, status) = (apiservers.unwrap_or_default(), status.unwrap_or_default());
        let definition = definition::find(&services, &sources, service);
        let mut daemon = Daemon {
            checks: typed_as_is(rows::of(&status, "checks")),
            problems: typed_as_is(rows::of(&status, "problems")),
            definition,
            services,
            frontends,
            backends,
            sources,
            session: self.typed(rows::of(&apiservers, "session")).into_iter().next(),
            apiservers: self.typed(rows::of(&apiservers, "apiservers")),
            maps: maps.as_ref().map(maps_of),
            differences: differences.map(|answer| concerning(service, rows::of(&answer, "differences"))),
            history: history.map(|answer| rows::of(&answer, "history")),
            ..Daemon::default()
        };
        if daemon.services.is_empty() {
            let all: Vec<ServiceRow> = self.rows("/services?output=json".into(), "services").await;
            daemon.names = all.into_iter().map(|row| row.service).collect();
        }
        daemon.traces = self.traces(&daemon.frontends).await;
        let config = self.answer("/config?output=json".into()).await;
        let settings = rows::of(&config.unwrap_or_default(), "config");
        daemon.cgroup = setting(&settings, "datapath.cgroup");
        daemon.health_checks = setting(&settings, "kubernetes.health-checks");
        if daemon.frontends.iter().any(is_for_outside) {
            let limits = maps.as_ref().map(|answer| typed_as_is(rows::of(answer, "limits"))).unwrap_or_default();
            let packets = self.packets(&of, limits).await;
            daemon.packets = packets.map(|it| Packets { snat_ports: setting(&settings, "packets.snat-ports"), ..it });
        }
        daemon.rivals = self.rivals(&daemon.frontends).await;
        daemon
    }

    /// Returns what the daemon knows about packets of clients outside the node; `None` if it does not have the routes.
    async fn packets(&self, of: &impl Fn(&str) -> String, limits: Vec<LimitRow>) -> Option<Packets> {
        let (devices, drops, connections) = tokio::join!(
            self.answer("/devices?output=json".into()),
            self.rows(of("/drops"), "drops"),
            self.rows(of("/connections"), "connections"),
        );
        let devices = devices?;
        let state = rows::of(&devices, "packets").into_iter().next()?;
        let text = |column: &str| state[column].as_str().unwrap_or_default().to_owned();
        Some(Packets {
            translation: text("translation"),
            reason: text("reason"),
            devices: typed_as_is(rows::of(&devices, "devices")),
            drops,
            connections,
            limits,
            snat_ports: String::new(),
        })
    }

    /// Returns what happens to a connection from this host according to the daemon.
    async fn traces(&self, frontends: &[FrontendRow]) -> Vec<Value> {
        let mut traces = Vec::new();
        for row in frontends.iter().filter(|row| !row.is_denied()).take(TRACED) {
            traces.extend(self.rows(format!("/trace?output=json&to={}", row.address), "verdict").await);
        }
        traces
    }

    /// Returns the other claims to the addresses that are in error.
    async fn rivals(&self, frontends: &[FrontendRow]) -> Vec<FrontendRow> {
        let failed = frontends.iter().filter(|row| row.is_denied());
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
fn is_for_outside(row: &FrontendRow) -> bool {
    matches!(row.kind.as_str(), "NodePort" | "LoadBalancer" | "ExternalIP") || row.outside == "Served"
}

/// The rows without ages.
fn typed_as_is<T: DeserializeOwned>(rows: Vec<Value>) -> Vec<T> {
    rows.into_iter().filter_map(|row| serde_json::from_value(row).ok()).collect()
}

/// Returns the value of a key, without quotes.
fn setting(settings: &[Value], key: &str) -> String {
    let value = settings.iter().find(|row| row["key"] == key).and_then(|row| row["value"].as_str());
    value.unwrap_or_default().trim_matches('"').to_owned()
}

/// Returns the differences of the service, and those of what all services need.
fn concerning(service: &ServiceName, mut differences: Vec<Value>) -> Vec<Value> {
    let name = service.to_string();
    let concerns =
        |row: Difference| row.service.as_ref() == Some(&name) || row.is_about_hooks() || row.whole_source().is_some();
    differences.retain(|row| Difference::new(row).is_some_and(concerns));
    differences
}

fn maps_of(answer: &Value) -> Maps {
    let text = |row: &Value, column: &str| row.get(column).and_then(Value::as_str).unwrap_or_default().to_owned();
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
