//! How the costs of the core, of merging service files and of `trace` grow with the number of services, endpoints, ports
//! and files: `make growth`. Prints CPU times at three sizes, and the exponent between each two: 1 is proportional, 2 is
//! quadratic. Fails above 1.5.

#![expect(
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark stops where it cannot go on, and prints; it shares its node with another"
)]

mod node;
#[path = "../cost/services.rs"]
mod services;

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use nodelb_core::change::Change;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::Protocol;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{ServicePort, SlicePort};
use nodelb_core::state::map_ops::Touched;
use nodelb_report::explain::explanation::{Client, explain};
use nodelb_sources::files::merge::{Contents, Merged};
use nodelb_sources::files::parse;

use node::{LIMITS, Node};

const SIZES: [u32; 3] = [1_000, 10_000, 100_000];
/// Endpoints of each service.
const ENDPOINTS: u32 = 10;
/// The numbers of ports of a single service.
const PORTS: [u32; 3] = [100, 1_000, 10_000];
/// The sizes of a single service. A view has at most 65,535 slots.
const LISTS: [u32; 3] = [600, 6_000, 60_000];
const LIMIT: f64 = 1.5;

/// A cost, in the order of the sizes.
struct Line {
    what: &'static str,
    times: [Duration; 3],
}

fn main() -> ExitCode {
    let services = lines(
        SIZES.map(measure_services),
        &["start", "one change", "snapshot and drop", "all at once", "restart", "end"],
    );
    let lists = lines(
        LISTS.map(measure_list),
        &["first list", "one endpoint more", "results of checks", "one result more", "trace"],
    );
    let ports = lines(PORTS.map(measure_ports), &["first ports", "one endpoint more", "one port less", "end of ports"]);
    let files = lines(SIZES.map(measure_files), &["first merge", "one file changes", "one file is gone"]);
    let is_within = [
        print("services", SIZES, &services),
        print("endpoints", LISTS, &lists),
        print("ports", PORTS, &ports),
        print("files", SIZES, &files),
    ];
    if is_within == [true; 4] { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn lines<const N: usize>(columns: [[Duration; N]; 3], names: &[&'static str; N]) -> Vec<Line> {
    let line = |(place, what): (usize, &&'static str)| Line { what, times: columns.map(|column| column[place]) };
    names.iter().enumerate().map(line).collect()
}

/// CPU time of this thread.
fn time<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let now = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let before = now();
    let result = black_box(work());
    (now() - before, result)
}

fn endpoints(number: u32, first: u32) -> Change {
    services::slice(
        number,
        Protocol::Udp,
        (first..first + ENDPOINTS).map(|place| services::backend(number * 16 + place)),
    )
}

/// The costs of this many services: to add them; to change one of them, 100 times; to take a snapshot, change a
/// service, and drop the snapshot, 100 times; to change all of them; to find them in the maps at a start, add them and
/// compare everything; and to remove them.
fn measure_services(count: u32) -> [Duration; 6] {
    let all = |first: u32| -> Vec<Change> {
        let both = |number| [services::service(number, Protocol::Udp), endpoints(number, first)];
        (0..count).flat_map(both).chain([services::synced()]).collect()
    };
    let mut node = Node::new(MemoryDatapath::new(LIMITS));
    let changes = all(0);
    let (start, ()) = time(|| node.apply(changes));
    let some = |turn: u32| -> Vec<Change> { (0..100).map(|at| endpoints(at * (count / 100), turn)).collect() };
    let changes = some(1);
    let (one, ()) = time(|| changes.into_iter().for_each(|change| node.apply([change])));
    let changes = some(2);
    let read = |node: &mut Node<_>, change| {
        let snapshot = node.engine.snapshot(Moment(0));
        node.apply([change]);
        drop(snapshot);
    };
    let (snapshots, ()) = time(|| changes.into_iter().for_each(|change| read(&mut node, change)));
    let changes = all(3);
    let (every, ()) = time(|| node.apply(changes));
    let changes = all(3);
    let (restart, mut node) = time(|| {
        let mut node = node.restart();
        node.apply(changes);
        let snapshot = node.engine.snapshot(Moment(0));
        assert!(Touched::surplus(&snapshot.desired, &snapshot.realised).is_empty());
        node
    });
    let removed: Vec<Change> = (0..count).flat_map(removals).collect();
    let (end, ()) = time(|| node.apply(removed));
    [start, one, snapshots, every, restart, end]
}

fn removals(number: u32) -> [Change; 2] {
    let (Change::UpsertService(service), Change::UpsertSlice(slice)) =
        (services::service(number, Protocol::Udp), endpoints(number, 0))
    else {
        unreachable!("they are a service and a slice")
    };
    [Change::RemoveSlice(slice.name, slice.source), Change::RemoveService(service.name, service.source)]
}

/// The costs of a service with this many endpoints: to add it; to add and remove an endpoint, ten times; to take the
/// results of its health checks, one of which is a failure; to take one failure more or less, ten times; and to trace a
/// connection to it.
fn measure_list(count: u32) -> [Duration; 5] {
    let list = |count| services::slice(0, Protocol::Udp, (0..count).map(services::backend));
    let mut node = Node::new(MemoryDatapath::new(LIMITS));
    let changes = [services::service(0, Protocol::Udp), list(count), services::synced()];
    let (first, ()) = time(|| node.apply(changes));
    let changes: Vec<Change> = (0..10).map(|turn| list(count + 1 - turn % 2)).collect();
    let (more, ()) = time(|| changes.into_iter().for_each(|change| node.apply([change])));
    let backend = |number| {
        let (addr, port) = services::backend(number);
        (IpAddr::V4(addr).into(), port)
    };
    let name = || services::name(0);
    let failed = |count| -> BTreeMap<_, _> { (0..count).map(|number| (backend(number), "refused".into())).collect() };
    let passed: BTreeSet<_> = (1..count).map(backend).collect();
    let changes = [Change::Passed(name(), passed), Change::Quarantine(name(), failed(1))];
    let (checked, ()) = time(|| node.apply(changes));
    let changes: Vec<Change> = (0..10).map(|turn| Change::Quarantine(name(), failed(2 - turn % 2))).collect();
    let (result, ()) = time(|| changes.into_iter().for_each(|change| node.apply([change])));
    let snapshot = node.engine.snapshot(Moment(0));
    let to = services::frontend(0, Protocol::Udp);
    let (trace, explanation) = time(|| explain(&snapshot, to, Client::Host));
    drop(explanation);
    [first, more, checked, result, trace]
}

/// The costs of a service with this many ports and a few endpoints: to add it; to add and remove an endpoint, ten times; to
/// remove and add a port, ten times; and to remove it.
fn measure_ports(count: u32) -> [Duration; 4] {
    let name = |port: u32| format!("port-{port}").into();
    let service = |count: u32| {
        let Change::UpsertService(mut service) = services::service(0, Protocol::Udp) else { unreachable!("a service") };
        let one = service.ports.remove(0);
        service.ports.extend((0..count).map(|number| {
            let mut port = ServicePort { name: name(number), ..one.clone() };
            port.frontends[0].port = u16::try_from(1_000 + number).unwrap();
            port
        }));
        Change::UpsertService(service)
    };
    let list = |endpoints: u32| {
        let all = services::slice(0, Protocol::Udp, (0..endpoints).map(services::backend));
        let Change::UpsertSlice(mut slice) = all else { unreachable!("a slice") };
        let one = slice.ports.remove(0);
        slice.ports.extend((0..count).map(|number| SlicePort { name: name(number), ..one.clone() }));
        Change::UpsertSlice(slice)
    };
    let mut node = Node::new(MemoryDatapath::new(LIMITS));
    let changes = [service(count), list(3), services::synced()];
    let (first, ()) = time(|| node.apply(changes));
    let changes: Vec<Change> = (0..10).map(|turn| list(4 - turn % 2)).collect();
    let (endpoint, ()) = time(|| changes.into_iter().for_each(|change| node.apply([change])));
    let changes: Vec<Change> = (0..10).map(|turn| service(count - 1 + turn % 2)).collect();
    let (port, ()) = time(|| changes.into_iter().for_each(|change| node.apply([change])));
    let removed = removals(0);
    let (end, ()) = time(|| node.apply(removed));
    [first, endpoint, port, end]
}

/// The costs of this many service files: to merge them; to merge them and compute the changes when one file has changed,
/// 100 times; and when one is gone, 100 times.
fn measure_files(count: u32) -> [Duration; 3] {
    let file = |number: u32, backend: u32| {
        let path = PathBuf::from(format!("/etc/nodelb/services.d/{number}.toml"));
        let frontend = services::frontend(number, Protocol::Tcp);
        let text = format!(
            "[[service]]\nname = \"{}\"\nfrontends = [\"{}:{}\"]\nbackends = [\"{}:80\"]\n",
            services::name(number),
            frontend.addr,
            frontend.port,
            services::backend(backend).0
        );
        let content = parse(&path, text.as_bytes()).unwrap();
        (path, Arc::new(content))
    };
    let mut files: Contents = (0..count).map(|number| file(number, number)).collect();
    let mut merged = Merged::default();
    let mut merge = |files: &Contents| {
        let new = merged.with(files);
        let changes = merged.changes_to(&new);
        merged = new;
        changes.len()
    };
    let (first, _) = time(|| merge(&files));
    let changed: Vec<_> = (0..100).map(|turn| file(turn * (count / 100), count + turn)).collect();
    let (one, ()) = time(|| {
        for (path, content) in changed {
            files.insert(path, content);
            assert_eq!(merge(&files), 1);
        }
    });
    let (gone, ()) = time(|| {
        for turn in 0..100 {
            files.remove(&file(turn * (count / 100), 0).0);
            assert_eq!(merge(&files), 2);
        }
    });
    [first, one, gone]
}

/// Prints the table; returns whether every exponent is within the limit.
fn print(of: &str, sizes: [u32; 3], lines: &[Line]) -> bool {
    println!("\n| {of} | {} | {} | {} | exponents |\n|---|---|---|---|---|", sizes[0], sizes[1], sizes[2]);
    let mut is_within = true;
    for Line { what, times } in lines {
        let exponent = |from: usize| {
            let growth = times[from + 1].as_secs_f64() / times[from].as_secs_f64();
            growth.ln() / (f64::from(sizes[from + 1]) / f64::from(sizes[from])).ln()
        };
        let exponents = [exponent(0), exponent(1)];
        is_within &= exponents.iter().all(|exponent| *exponent <= LIMIT);
        let [a, b, c] = times.map(|time| time.as_secs_f64() * 1e3);
        println!("| {what} | {a:.2} ms | {b:.2} ms | {c:.2} ms | {:.2}, {:.2} |", exponents[0], exponents[1]);
    }
    println!("\nEvery exponent at most {LIMIT}: {}.", if is_within { "yes" } else { "**no**" });
    is_within
}
