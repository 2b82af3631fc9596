//! The numbers that nodelb should show, and those that it shows, by their names.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::{DELETED, FAMILIES, PROTOCOLS, Play, Port, endpoints};
use crate::host::{answer, get};
use crate::lab_services::ON_B;
use crate::without_daemon::nodelb;

/// Numbers by their names.
type Numbers = BTreeMap<String, u64>;

fn add(numbers: &mut Numbers, names: &[&str], number: u64) {
    for name in names.iter().filter(|_| number > 0) {
        *numbers.entry((*name).to_owned()).or_default() += number;
    }
}

const CONNECTIONS: &str = "/connections";

/// No connection is forgotten within this time, the shortest that the packet path has for one.
const KEPT: Duration = Duration::from_secs(30);

/// The metrics that are compared.
const METRICS: [&str; 10] = [
    "nodelb_service_connections_total{",
    "nodelb_packet_dropped_total{",
    "nodelb_packet_answered_total{",
    "nodelb_packet_connections_created_total",
    "nodelb_services",
    "nodelb_frontends{",
    "nodelb_backends{",
    "nodelb_backends_selectable",
    "nodelb_map_entries{map=\"frontends\"}",
    "nodelb_map_entries{map=\"outside\"}",
];

/// A port as nodelb names it.
pub(super) fn port_name((number, transport, family): Port) -> String {
    let protocol = PROTOCOLS[transport];
    format!("lab/s{number}:{}/{protocol}/{}", protocol.to_lowercase(), FAMILIES[family])
}

impl Play<'_> {
    /// The numbers that differ: their names, what clients counted, and what nodelb shows.
    pub(super) fn look(&mut self) -> Vec<(String, Option<u64>, Option<u64>)> {
        let (mut expected, mut shown) = (self.expected(), self.shown());
        if self.since.elapsed() > KEPT {
            for numbers in [&mut expected, &mut shown] {
                numbers.retain(|name, _| !name.starts_with(CONNECTIONS));
            }
        }
        self.truth.seen = self.truth.series.clone();
        let names: BTreeSet<&String> = expected.keys().chain(shown.keys()).collect();
        let numbers =
            names.into_iter().map(|name| (name.clone(), expected.get(name).copied(), shown.get(name).copied()));
        numbers.filter(|(_, expected, shown)| expected != shown).collect()
    }

    /// The numbers that nodelb should show.
    fn expected(&self) -> Numbers {
        let (truth, mut found) = (&self.truth, Numbers::new());
        for ((port, from), counted) in &truth.counts {
            let (name, place) = (port_name(*port), from.place());
            add(&mut found, &[&format!("/counters {name} {place}")], counted.translated);
            add(&mut found, &[&format!("/counters {name} refused")], counted.refused);
            add(&mut found, &[&format!("top lab/s{}", port.0)], counted.translated + counted.refused);
        }
        for ((number, transport, from), counted) in &truth.series {
            let protocol = PROTOCOLS[*transport];
            for (result, count) in [("translated", counted.translated), ("refused", counted.refused)] {
                let labels = [
                    format!("service=\"lab/s{number}\",port=\"{}\"", protocol.to_lowercase()),
                    format!("protocol=\"{protocol}\",from=\"{}\",result=\"{result}\"", from.place()),
                ];
                add(&mut found, &[&format!("nodelb_service_connections_total{{{}}}", labels.join(","))], count);
            }
        }
        for ((reason, service), packets) in &truth.drops {
            let names = [
                &*format!("/drops {reason} {service}"),
                "/drops counted",
                &*format!("nodelb_packet_dropped_total{{reason=\"{reason}\"}}"),
            ];
            add(&mut found, &names, *packets);
        }
        add(&mut found, &["nodelb_packet_answered_total{kind=\"rst\"}"], truth.resets);
        add(&mut found, &["nodelb_packet_answered_total{kind=\"icmp\"}"], truth.icmp);
        for (port, begun) in &truth.begun {
            add(&mut found, &[&format!("{CONNECTIONS} {}", port_name(*port))], *begun);
        }
        add(&mut found, &["nodelb_packet_connections_created_total"], truth.created);
        self.expect_objects(&mut found);
        found
    }

    /// The numbers of services, addresses and backends.
    fn expect_objects(&self, found: &mut Numbers) {
        for (number, now) in &self.services {
            let status = if now.has_backends { "OK" } else { "NoBackends" };
            add(found, &["/services", &format!("status services {status}"), "nodelb_services"], 1);
            add(found, &["nodelb_services_without_backends"], u64::from(!now.has_backends));
            // Two protocols for each of two ClusterIPs, load balancer addresses and NodePorts.
            let names = [format!("status frontends {status}"), format!("nodelb_frontends{{status=\"{status}\"}}")];
            add(found, &["/frontends", &names[0], &names[1]], 12);
            add(found, &["/maps frontends", "map frontends", "nodelb_map_entries{map=\"frontends\"}"], 12);
            add(found, &["map outside", "nodelb_map_entries{map=\"outside\"}"], 8);
            for endpoint in if now.has_backends { endpoints(*number) } else { &[] } {
                let is_drained = *number == 4 && *endpoint == ON_B && self.is_drained;
                let state = if is_drained { "Maintenance" } else { "Active" };
                let names = [format!("status backends {state}"), format!("nodelb_backends{{state=\"{state}\"}}")];
                add(found, &[&format!("/backends {state}"), &names[0], &names[1]], 4);
                add(found, &["nodelb_backends_selectable"], if is_drained { 0 } else { 4 });
            }
        }
        // The addresses of the canary.
        add(found, &["/maps frontends", "map frontends", "nodelb_map_entries{map=\"frontends\"}"], 2);
    }

    /// The numbers that it shows.
    fn shown(&self) -> Numbers {
        let mut found = Numbers::new();
        let top = nodelb(self.host, &["top", "--once", "--interval", "100ms", "-o", "json"]);
        let top: Value = serde_json::from_slice(&top.stdout).unwrap();
        for row in top["rates"].as_array().unwrap() {
            add(&mut found, &[&format!("top {}", text(&row["service"]))], row["total"].as_u64().unwrap());
        }
        show_traffic(&mut found);
        show_objects(&mut found);
        for line in answer("/metrics", "text/plain").unwrap().lines() {
            if METRICS.iter().any(|metric| line.starts_with(metric)) {
                let (name, value) = line.rsplit_once(' ').unwrap();
                add(&mut found, &[name], value.parse().unwrap());
            }
        }
        found
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn rows(path: &str) -> Vec<Value> {
    get(&format!("/{path}")).unwrap()[path].as_array().unwrap().clone()
}

fn show_traffic(found: &mut Numbers) {
    for row in rows("counters") {
        let name = format!("/counters {}:{}", text(&row["service"]), text(&row["port"]));
        for column in ["inside", "outside", "refused"] {
            add(found, &[&format!("{name} {column}")], row[column].as_u64().unwrap_or_default());
        }
    }
    let drops = get("/drops").unwrap();
    for row in drops["drops"].as_array().unwrap() {
        let service = text(&row["service"]);
        let service = if service.starts_with(DELETED) { DELETED } else { service };
        add(found, &[&format!("/drops {} {service}", text(&row["reason"]))], row["packets"].as_u64().unwrap());
    }
    add(found, &["/drops counted"], drops["counted"]["packets"].as_u64().unwrap());
    let connections = get("/connections").unwrap();
    let listed = connections["connections"].as_array().unwrap();
    assert_eq!(connections["listed"]["connections"], listed.len());
    // Those of a service that was removed are listed, too.
    for service in listed.iter().map(|row| text(&row["service"])).filter(|service| service.starts_with("lab/")) {
        add(found, &[&format!("{CONNECTIONS} {service}")], 1);
    }
}

fn show_objects(found: &mut Numbers) {
    let counts = get("/status").unwrap()["counts"].clone();
    for (kind, of) in [("services", "status"), ("frontends", "status"), ("backends", "state")] {
        for (state, number) in counts[format!("{kind}_by_{of}")].as_object().unwrap() {
            add(found, &[&format!("status {kind} {state}")], number.as_u64().unwrap());
        }
    }
    add(found, &["/services"], rows("services").len() as u64);
    add(found, &["/frontends"], rows("frontends").len() as u64);
    for row in rows("backends") {
        add(found, &[&format!("/backends {}", text(&row["state"]))], 1);
    }
    let maps = get("/maps").unwrap();
    add(found, &["/maps frontends"], maps["frontends"].as_array().unwrap().len() as u64);
    for row in maps["limits"].as_array().unwrap() {
        if ["frontends", "outside"].contains(&text(&row["map"])) {
            add(found, &[&format!("map {}", text(&row["map"]))], row["used"].as_u64().unwrap());
        }
    }
}
