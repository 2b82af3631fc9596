//! Random sequences of faults and changes.

use std::time::{Duration, Instant};

use nodelb_apiserver::{Backup, EventFault, Fault, On, WatchList};
use nodelb_kube::api::decode::Kind;

use crate::extent;
use crate::objects::{self, backend, frontend};
use crate::rig::Rig;

/// Number of sequences in `make test` and in `make test-all`, and of threads.
const SEQUENCES: u64 = 1_000;
const ALL_SEQUENCES: u64 = 10_000;
const THREADS: u64 = 2;

/// Number of services: few, so that any loss is a large part of them, and more than fit into one page of a list.
const SERVICES: u64 = 5;

/// Minimum time between wrong lists: the previous one must be detected first.
const BETWEEN_INCOMPLETE_LISTS: Duration = Duration::from_millis(500);

#[test]
fn random_fault_sequences() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("CHAOS_SEED").unwrap_or_else(|| u64::from(std::process::id()) << 20);
    let usual = if extent::is_all() { ALL_SEQUENCES } else { SEQUENCES };
    let sequences = number("CHAOS_SEQUENCES").unwrap_or(usual);
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
    steady: Steady,
    backup: (Backup, Steady),
    lied_at: Instant,
    /// Kinds that may not have detected the last restore.
    unnoticed: Vec<&'static str>,
}

/// For each service, the slice that contains its permanent backend.
type Steady = [u64; 5];

/// SplitMix64: the same numbers for the same seed on every machine.
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
        // Every other seed without HTTP/2.
        let alpn: &[_] = if seed.is_multiple_of(2) { &["h2", "http/1.1"] } else { &["http/1.1"] };
        let rig = Rig::over(alpn);
        // One kind may have its own etcd, whose versions are far ahead of the others.
        if let Some(kind) = ["services", "endpointslices"].get(usize::try_from(seed / 2 % 3).expect("few")) {
            rig.cluster.separate_versions(kind, 5_000_000).expect("served");
        }
        for object in (0..SERVICES).flat_map(objects::pair) {
            rig.cluster.apply_value(object).expect("valid");
        }
        rig.converge("the services");
        (0..SERVICES).for_each(|service| rig.watch(&frontend(service), Some(&backend(service))));
        rig.converge("the beginning");
        let steady = Steady::default();
        let backup = (rig.cluster.backup(), steady);
        Self { seed, random: Random(seed), rig, steady, backup, lied_at: Instant::now(), unnoticed: Vec::new() }
    }

    fn run(mut self, sequences: u64) {
        for sequence in 0..sequences {
            let begun = Instant::now();
            let mut steps = Vec::new();
            for _ in 0..1 + self.random.below(4) {
                steps.push(match self.random.below(30) {
                    0..=9 => self.misbehave(),
                    10 if self.random.below(3) == 0 => self.happen_alone(),
                    _ => self.change(),
                });
                if self.random.below(4) == 0 {
                    std::thread::sleep(Duration::from_micros(self.random.below(3000)));
                }
            }
            // Every fault ends by itself, most of them while the table converges.
            let what = format!("CHAOS_SEED={} sequence {sequence}: {}", self.seed, steps.join(", "));
            self.rig.converge(&what);
            self.check_journal(&what);
            if begun.elapsed() > Duration::from_secs(2) {
                println!("slow, {:.1?}: {what}", begun.elapsed());
            }
        }
    }

    /// Checks the log lines since the last call.
    fn check_journal(&mut self, what: &str) {
        let journal = self.rig.take_journal();
        for line in journal.lines().filter(|line| line.contains("was restored")) {
            // Each kind detects it once, at the latest with its next request.
            let kind =
                self.unnoticed.iter().position(|kind| line.contains(&format!("{kind}: the cluster was restored")));
            assert!(kind.is_some(), "{what}: {journal}");
            kind.map(|kind| self.unnoticed.remove(kind));
        }
        for wrong in ["another cluster", "a bug of nodelb"] {
            assert!(!journal.contains(wrong), "{what}: {journal}");
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
                cluster.apply_value(objects::slice(&format!("s{service}"), other + 10, &backends)).expect("valid");
                format!("slice {service}-{other} := {backends:?}")
            }
            4 => {
                _ = cluster.delete("endpointslices", "ns", &format!("s{service}-{}", other + 10));
                format!("delete slice {service}-{other}")
            }
            5 => {
                // A renamed slice: controllers create the new one first.
                let place = &mut self.steady[usize::try_from(service).expect("few")];
                let (old, new) = (*place, *place ^ 1);
                *place = new;
                let steady = objects::slice(&format!("s{service}"), new, &[format!("192.0.2.{service}")]);
                cluster.apply_value(steady).expect("valid");
                cluster.delete("endpointslices", "ns", &format!("s{service}-{old}")).expect("was there");
                format!("move the backend of {service} to slice {new}")
            }
            6 => {
                let mut object = objects::service(&format!("s{service}"), service);
                object["metadata"]["annotations"] = serde_json::json!({"touched": cluster.revision().to_string()});
                cluster.apply_value(object).expect("valid");
                format!("touch service {service}")
            }
            7 => {
                let name = format!("t{}", service % 3);
                _ = cluster.delete("services", "ns", &name);
                let slice = objects::slice(&name, 0, &["203.0.113.9".into()]);
                cluster.apply_value(slice).expect("valid");
                cluster.apply_value(objects::service(&name, 100 + service % 3)).expect("valid");
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
                // Disconnects while objects are deleted.
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

    /// Actions that must not overlap another fault, because the loss could not be attributed.
    fn happen_alone(&mut self) -> String {
        let faults = self.rig.replica.faults();
        let resource = if self.random.below(2) == 0 { "services" } else { "endpointslices" };
        let (which, items) = (self.random.below(5), self.random.below(3));
        faults.clear();
        let seed = self.seed;
        let during = |what: &str| format!("CHAOS_SEED={seed}: {what}");
        self.rig.converge(&during("before something that happens alone"));
        match which {
            0 => {
                self.backup = (self.rig.cluster.backup(), self.steady);
                "backup".into()
            }
            1 => {
                // What the kinds have detected so far is an earlier restore.
                self.check_journal(&during("before a restored backup"));
                self.rig.cluster.restore_backup(&self.backup.0);
                self.steady = self.backup.1;
                self.unnoticed = Kind::ALL.map(Kind::resource).to_vec();
                self.rig.reconnect();
                self.rig.converge(&during("a restored backup"));
                "restore".into()
            }
            2 => {
                if self.lied_at.elapsed() > BETWEEN_INCOMPLETE_LISTS {
                    std::thread::sleep(BETWEEN_INCOMPLETE_LISTS / 10);
                    let items = usize::try_from(items).unwrap_or(0);
                    faults.answer_next(1, On::resource(resource), Fault::Keep { items });
                    faults.expire_watches();
                    self.lied_at = Instant::now();
                }
                format!("a list of {resource} with {items} items, unless one was of late")
            }
            3 if items == 0 => {
                self.rig.restart_node_with_another_authority();
                "restart with one certificate authority more".into()
            }
            3 => {
                self.rig.restart_node();
                "restart".into()
            }
            _ => {
                faults.events_next(1, "endpointslices", EventFault::Swap);
                let name = format!("s{}", items + 1);
                _ = self.rig.cluster.delete("endpointslices", "ns", &format!("{name}-11"));
                let object = objects::slice(&name, 11, &["203.0.113.7".into()]);
                self.rig.cluster.apply_value(object).expect("valid");
                _ = self.rig.cluster.delete("endpointslices", "ns", &format!("{name}-11"));
                let object = objects::slice(&name, 12, &["203.0.113.8".into()]);
                self.rig.cluster.apply_value(object).expect("valid");
                self.rig.converge(&during("swapped events"));
                // A list may have delivered everything; a remaining fault would swap events of two
                // objects, which cannot be corrected.
                faults.clear();
                format!("swapped events of {name}")
            }
        }
    }

    fn misbehave(&mut self) -> String {
        let resource = if self.random.below(2) == 0 { "services" } else { "endpointslices" };
        let times = 1 + u32::try_from(self.random.below(3)).unwrap_or(0);
        let after = usize::try_from(self.random.below(3000)).unwrap_or(0);
        let code = [410, 429, 500, 502, 503, 504, 404, 400][usize::try_from(self.random.below(8)).unwrap_or(0)];
        match self.random.below(16) {
            0..5 => self.inject_request_faults(resource, times, after, code),
            5..10 => self.inject_event_faults(resource, times, after, code),
            _ => self.inject_connection_faults(after),
        }
    }

    /// Injects faults into requests.
    fn inject_request_faults(&mut self, resource: &str, times: u32, after: usize, code: u16) -> String {
        let on = match self.random.below(3) {
            0 => On::list(resource),
            1 => On::watch(resource),
            _ => On::resource(resource),
        };
        let (times, on, fault) = match self.random.below(5) {
            0 | 1 => (times, on, Fault::Status { code, retry_after: None }),
            2 => (times, on, Fault::Cut { after }),
            3 => (1, on, Fault::Truncate { after }),
            _ => (1, On::watch(resource), Fault::ErrorEvent { code }),
        };
        let what = format!("{times} x {fault:?} on {on:?}");
        self.rig.replica.faults().answer_next(times, on, fault);
        self.rig.replica.faults().end_watches();
        what
    }

    /// Injects faults into events.
    fn inject_event_faults(&mut self, resource: &str, times: u32, after: usize, code: u16) -> String {
        let garbage =
            ["{\"type\":\"ADDED\"}", "<html>", "{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"name\":7}}}"];
        let (times, fault) = match self.random.below(5) {
            0 => (times, EventFault::Duplicate),
            1 => (times, EventFault::Error { code }),
            2 => (1, EventFault::Cut { after: after % 200 }),
            3 => (1, EventFault::Silence),
            _ => (1, EventFault::Garbage { bytes: garbage[after % 3].into() }),
        };
        let what = format!("{times} x {fault:?} of {resource}");
        self.rig.replica.faults().events_next(times, resource, fault);
        what
    }

    /// Replaces the session in use by another one during many writes.
    fn replace_session(&mut self, after: usize) -> String {
        self.rig.renew_certificate();
        for step in 0..40 {
            let name = format!("s{}", step % SERVICES);
            let object = objects::slice(&name, 13, &[format!("203.0.113.{}", 1 + (after as u64 + step) % 200)]);
            self.rig.cluster.apply_value(object).expect("valid");
            std::thread::sleep(Duration::from_millis(2));
        }
        "a renewed certificate".into()
    }

    /// Injects faults into connections, and changes the features of the server.
    fn inject_connection_faults(&mut self, after: usize) -> String {
        let faults = self.rig.replica.faults();
        match self.random.below(11) {
            0 => {
                faults.expire_watches();
                "expired".into()
            }
            1 => {
                faults.reset_connections();
                "reset".into()
            }
            2 => {
                faults.end_watches();
                "ended".into()
            }
            3 => {
                let mode = [WatchList::On, WatchList::Off, WatchList::Unsupported][after % 3];
                // This mode costs the whole timeout of a list, so it is rare.
                let mode =
                    if mode == WatchList::Unsupported && !after.is_multiple_of(8) { WatchList::Off } else { mode };
                faults.behave(|behaviour| behaviour.watch_list = mode);
                faults.expire_watches();
                format!("streaming lists: {mode:?}")
            }
            5 => {
                faults.go_away();
                "go away".into()
            }
            6 => {
                faults.answer_next(1, On::any(), Fault::Status { code: 401, retry_after: None });
                faults.end_watches();
                "one 401".into()
            }
            7 => {
                let (lasts, code) = (Duration::from_micros(after as u64 * 10), [401, 403][after % 2]);
                faults.start_up(lasts, code);
                faults.reset_connections();
                format!("starts up with {code} for {lasts:?}")
            }
            8 => {
                let on = On::path("/api/v1/namespaces/default/services");
                faults.answer_next(1, on, Fault::Status { code: 429, retry_after: Some(0) });
                faults.reset_connections();
                "too many requests at the first question".into()
            }
            9 => self.replace_session(after),
            4 => {
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
