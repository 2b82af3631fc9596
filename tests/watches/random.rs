//! Ten thousand random sequences of faults and changes.

use std::time::{Duration, Instant};

use nodelb_apiserver::{EventFault, Fault, On, WatchList};
use serde_json::{Value, json};

use crate::rig::Rig;

/// How many sequences there are, in so many threads.
const SEQUENCES: u64 = 10_000;
const THREADS: u64 = 2;

/// How many services there are.
const SERVICES: u64 = 6;

#[test]
fn ten_thousand_random_fault_sequences() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("CHAOS_SEED").unwrap_or_else(|| u64::from(std::process::id()) << 20);
    let sequences = number("CHAOS_SEQUENCES").unwrap_or(SEQUENCES);
    println!("CHAOS_SEED={seed}");
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || Chaos::new(seed + thread).run(sequences / THREADS));
        }
    });
    println!("{sequences} sequences in {:.1?}", begun.elapsed());
}

struct Chaos {
    seed: u64,
    random: Random,
    rig: Rig,
    /// In which of its slices the backend of a service is that never goes.
    steady: [u64; SERVICES as usize],
}

/// SplitMix64: the same numbers for the same seed, everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let rig = Rig::start("");
        for service in 0..SERVICES {
            rig.cluster.apply_value(service_object(service)).expect("valid");
            let steady = slice_object(service, 0, &[format!("192.0.2.{service}")]);
            rig.cluster.apply_value(steady).expect("valid");
            let frontend = format!("198.51.100.{service}:80/TCP");
            let backend = format!("192.0.2.{service}:8080/TCP");
            rig.node.eye.lock().expect("not poisoned").watch(&frontend, Some(&backend));
        }
        rig.converge("the beginning");
        random.below(1);
        Self { seed, random, rig, steady: [0; SERVICES as usize] }
    }

    fn run(mut self, sequences: u64) {
        for sequence in 0..sequences {
            let begun = Instant::now();
            let mut steps = Vec::new();
            for _ in 0..1 + self.random.below(4) {
                steps.push(if self.random.below(3) == 0 { self.misbehave() } else { self.change() });
                if self.random.below(4) == 0 {
                    std::thread::sleep(Duration::from_micros(self.random.below(3000)));
                }
            }
            // Every fault wears off by itself, most of them while the table follows.
            let what = format!("CHAOS_SEED={} sequence {sequence}: {}", self.seed, steps.join(", "));
            self.rig.converge(&what);
            if begun.elapsed() > Duration::from_secs(2) {
                println!("slow, {:.1?}: {what}", begun.elapsed());
            }
        }
    }

    fn change(&mut self) -> String {
        let cluster = &self.rig.cluster;
        let service = self.random.below(SERVICES);
        let other = 1 + self.random.below(3);
        match self.random.below(12) {
            0..=3 => {
                let backends: Vec<String> =
                    (0..self.random.below(5)).map(|n| format!("203.0.113.{}", n + other)).collect();
                cluster.apply_value(slice_object(service, other + 10, &backends)).expect("valid");
                format!("slice {service}-{other} := {backends:?}")
            }
            4 => {
                _ = cluster.delete("endpointslices", "ns", &format!("s{service}-{}", other + 10));
                format!("delete slice {service}-{other}")
            }
            5 => {
                // Renamed: the new one first, as controllers do.
                let (old, new) = (self.steady[service as usize], self.steady[service as usize] ^ 1);
                let steady = slice_object(service, new, &[format!("192.0.2.{service}")]);
                cluster.apply_value(steady).expect("valid");
                cluster.delete("endpointslices", "ns", &format!("s{service}-{old}")).expect("was there");
                self.steady[service as usize] = new;
                format!("move the backend of {service} to slice {new}")
            }
            6 => {
                cluster.apply_value(service_object(service)).expect("valid");
                format!("touch service {service}")
            }
            7 => {
                let name = format!("t{}", service % 3);
                _ = cluster.delete("services", "ns", &name);
                let slice = slice_of(&name, 0, &["203.0.113.9".into()]);
                cluster.apply_value(slice).expect("valid");
                cluster.apply_value(named_service(&name, 100 + service % 3)).expect("valid");
                format!("delete and create {name}")
            }
            8 => {
                let name = format!("t{}", service % 3);
                _ = cluster.delete("services", "ns", &name);
                format!("delete {name}")
            }
            9 => {
                cluster.compact();
                "compact".into()
            }
            10 => {
                // Away while something is deleted.
                self.rig.replica.faults().refuse(true);
                self.rig.replica.faults().reset_connections();
                _ = cluster.delete("endpointslices", "ns", &format!("s{service}-{}", other + 10));
                if self.random.below(2) == 0 {
                    cluster.compact();
                }
                self.rig.replica.faults().refuse(false);
                "delete while away".into()
            }
            _ => {
                cluster.advance(1 + self.random.below(5));
                "other writes".into()
            }
        }
    }

    fn misbehave(&mut self) -> String {
        let faults = self.rig.replica.faults();
        let resource = if self.random.below(2) == 0 { "services" } else { "endpointslices" };
        let times = 1 + u32::try_from(self.random.below(3)).unwrap_or(0);
        let on = match self.random.below(3) {
            0 => On::list(resource),
            1 => On::watch(resource),
            _ => On::resource(resource),
        };
        let after = usize::try_from(self.random.below(3000)).unwrap_or(0);
        let code = [410, 429, 500, 502, 503, 504, 404, 400][usize::try_from(self.random.below(8)).unwrap_or(0)];
        match self.random.below(16) {
            0 | 1 => {
                faults.answer_next(times, on.clone(), Fault::Status { code, retry_after: None });
                faults.end_watches();
                format!("{times} x {code} on {on:?}")
            }
            2 => {
                faults.answer_next(times, on.clone(), Fault::Cut { after });
                faults.end_watches();
                format!("{times} x cut after {after} on {on:?}")
            }
            3 => {
                faults.answer_next(1, on.clone(), Fault::Truncate { after });
                faults.end_watches();
                format!("truncated after {after} on {on:?}")
            }
            4 => {
                faults.answer_next(1, On::watch(resource), Fault::ErrorEvent { code });
                faults.end_watches();
                format!("error event {code} on {resource}")
            }
            5 => {
                faults.events_next(times, resource, EventFault::Duplicate);
                format!("{times} duplicates of {resource}")
            }
            6 => {
                faults.events_next(times, resource, EventFault::Error { code });
                format!("{times} error events {code} of {resource}")
            }
            7 => {
                faults.events_next(1, resource, EventFault::Cut { after: after % 200 });
                format!("an event of {resource} cut after {}", after % 200)
            }
            8 => {
                faults.events_next(1, resource, EventFault::Silence);
                format!("silence of {resource}")
            }
            9 => {
                let bytes = [
                    "{\"type\":\"ADDED\"}",
                    "<html>",
                    "{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"name\":7}}}",
                ];
                let bytes = bytes[after % 3];
                faults.events_next(1, resource, EventFault::Garbage { bytes: bytes.into() });
                format!("{bytes} among the events of {resource}")
            }
            10 => {
                faults.expire_watches();
                "expired".into()
            }
            11 => {
                faults.reset_connections();
                "reset".into()
            }
            12 => {
                faults.end_watches();
                "ended".into()
            }
            13 => {
                let mode = [WatchList::On, WatchList::Off, WatchList::Ancient][after % 3];
                // An ancient server costs the whole patience for a list, so it is rare.
                let mode = if mode == WatchList::Ancient && after % 8 != 0 { WatchList::Off } else { mode };
                faults.behave(|behaviour| behaviour.watch_list = mode);
                faults.expire_watches();
                format!("streaming lists: {mode:?}")
            }
            14 => {
                faults.behave(|behaviour| behaviour.expired_as_status = !behaviour.expired_as_status);
                "410 in the other form".into()
            }
            _ => {
                faults.reset_after(u64::try_from(after).unwrap_or(0) * 3, 1);
                format!("reset after {} bytes", after * 3)
            }
        }
    }
}

fn service_object(service: u64) -> Value {
    named_service(&format!("s{service}"), service)
}

fn named_service(name: &str, number: u64) -> Value {
    json!({"kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "ns", "name": name},
        "spec": {"clusterIP": format!("198.51.100.{number}"), "clusterIPs": [format!("198.51.100.{number}")],
            "ports": [{"port": 80, "targetPort": 8080}]}})
}

fn slice_object(service: u64, slice: u64, backends: &[String]) -> Value {
    slice_of(&format!("s{service}"), slice, backends)
}

fn slice_of(service: &str, slice: u64, backends: &[String]) -> Value {
    let endpoints: Vec<Value> =
        backends.iter().map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}})).collect();
    json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"namespace": "ns", "name": format!("{service}-{slice}"), "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "", "port": 8080, "protocol": "TCP"}]})
}
