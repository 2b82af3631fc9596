//! How long nodelb receives no changes when its apiserver fails, for each kind of failure: from the
//! fault to the first change that arrives over another address. No change is lost during failover
//! or on the way back.
//!
//! `NODELB_STRICT=1` enforces the limits.

use std::time::{Duration, Instant};

use nodelb_apiserver::{Behaviour, Cluster, ServeOptions};

use crate::cluster::{Writer, cluster_at, join, newest, serve, serve_on, serve_with};
use crate::host::{Host, assert_within, eventually, say};
use crate::network::{Relay, RemoteHost};
use crate::sandbox;

const FIRST: &str = "192.0.2.21:6443";
const SECOND: &str = "192.0.2.22:6443";
const THIRD: &str = "192.0.2.23:6443";

/// The ALPN protocols that servers offer.
const EVERYTHING: &[&str] = &["h2", "http/1.1"];
const OLD: &[&str] = &["http/1.1"];

const REFUSED: Duration = Duration::from_secs(1);
const BLACK_HOLE: Duration = Duration::from_secs(5);
const FROZEN: Duration = Duration::from_secs(10);
const NOT_READY: Duration = Duration::from_secs(10);
const RESTARTED: Duration = Duration::from_secs(5);

/// Measures the time from the fault to the first change that was written after it.
fn measure(what: &str, limit: Duration, writer: &Writer, fault: impl FnOnce()) {
    let begun = Instant::now();
    fault();
    let before = writer.last();
    eventually(what, || newest() > before);
    check(what, limit, begun.elapsed());
}

fn check(what: &str, limit: Duration, took: Duration) {
    assert_within(&format!("{what}: the first change that arrives"), limit, took);
}

/// Waits until changes arrive steadily.
fn settle(writer: &Writer) {
    let begun = writer.last();
    eventually("changes", || newest() > begun + 10);
}

#[test]
fn refused_and_back_to_the_preferred_one() {
    sandbox::run("failover::refused_and_back_to_the_preferred_one", |sandbox| {
        let host = Host::new(sandbox);
        let cluster = cluster_at(&[FIRST]);
        let first = serve(&cluster, FIRST);
        let (second, _third) = (serve(&cluster, SECOND), serve(&cluster, THIRD));
        join(&host, &cluster, &[FIRST, SECOND, THIRD]);
        let daemon = host.start();
        let writer = Writer::start(&cluster);
        settle(&writer);
        measure("connection refused", REFUSED, &writer, || first.stop());
        let first = serve(&cluster, FIRST);
        let begun = Instant::now();
        // It must be healthy for a while before nodelb returns to it.
        let is_back =
            || host.log().matches(&format!("apiserver {FIRST} is in use: it is the preferred one")).count() == 2;
        while !is_back() && begun.elapsed() < Duration::from_secs(90) {
            std::thread::sleep(Duration::from_millis(200));
        }
        say(&format!("back at the preferred address after {:?}", begun.elapsed()));
        assert!(first.faults().take_requests().iter().any(|line| line.contains("watch=true")), "{}", host.log());
        second.stop();
        settle(&writer);
        writer.finish(&host);
        daemon.stop();
    });
}

fn black_hole(host: &Host, number: u8, alpn: &[&'static str], what: &str, phase: u64) {
    let [wire, other] = [RemoteHost::new(number), RemoteHost::new(number + 1)];
    let [at, other_at] = [wire.address(), other.address()];
    let cluster = cluster_at(&[&at, &other_at]);
    let _first = serve_on(&cluster, wire.listen(), alpn);
    let _second = serve_on(&cluster, other.listen(), alpn);
    join(host, &cluster, &[&at, &other_at]);
    let daemon = host.start();
    let writer = Writer::start(&cluster);
    settle(&writer);
    // At different phases of the probe interval.
    std::thread::sleep(Duration::from_millis(phase));
    measure(what, BLACK_HOLE, &writer, || wire.cut());
    writer.finish(host);
    daemon.stop();
    forget(host);
}

/// Deletes the stored state of this cluster.
fn forget(host: &Host) {
    host.cleanup();
    std::fs::remove_dir_all(host.path("state")).unwrap();
}

#[test]
fn black_holes() {
    sandbox::run("failover::black_holes", |sandbox| {
        let host = Host::new(sandbox);
        black_hole(&host, 0, EVERYTHING, "black hole", 0);
        black_hole(&host, 2, OLD, "black hole, HTTP/1.1", 0);
        black_hole(&host, 4, OLD, "black hole, HTTP/1.1, the other way round", 2000);
    });
}

fn frozen(host: &Host, test: &str, alpn: &[&'static str], what: &str) {
    const RELAYED: &str = "192.0.2.31:6443";
    let cluster = cluster_at(&[RELAYED]);
    let _first = serve_on(&cluster, std::net::TcpListener::bind(FIRST).unwrap(), alpn);
    let _second = serve_on(&cluster, std::net::TcpListener::bind(SECOND).unwrap(), alpn);
    let process = Relay::start(test, RELAYED, FIRST);
    join(host, &cluster, &[RELAYED, SECOND]);
    let daemon = host.start();
    let writer = Writer::start(&cluster);
    settle(&writer);
    measure(what, FROZEN, &writer, || process.freeze());
    writer.finish(host);
    daemon.stop();
    forget(host);
}

#[test]
fn frozen_processes() {
    Relay::run_if_requested();
    const TEST: &str = "failover::frozen_processes";
    sandbox::run(TEST, |sandbox| {
        let host = Host::new(sandbox);
        frozen(&host, TEST, EVERYTHING, "frozen process");
        frozen(&host, TEST, OLD, "frozen process, HTTP/1.1");
    });
}

#[test]
fn not_ready() {
    sandbox::run("failover::not_ready", |sandbox| {
        let host = Host::new(sandbox);
        let cluster: Cluster = cluster_at(&[FIRST]);
        let (first, second) = (serve(&cluster, FIRST), serve(&cluster, SECOND));
        join(&host, &cluster, &[FIRST, SECOND]);
        let daemon = host.start();
        let writer = Writer::start(&cluster);
        settle(&writer);
        let begun = Instant::now();
        first.faults().not_ready();
        // The frozen server still sends events; the time ends when another server does.
        eventually("watches at the second one", || {
            let requests = second.faults().take_requests();
            requests.iter().any(|line| line.contains("endpointslices") && line.contains("watch=true"))
        });
        let before = writer.last();
        eventually("changes from the second one", || newest() > before);
        check("503 on /readyz", NOT_READY, begun.elapsed());
        writer.finish(&host);
        daemon.stop();
    });
}

/// A real apiserver returns 403 until its authorizer has synced, which is not a final answer. How
/// long it was down before makes no difference.
#[test]
fn ten_restarts_of_an_apiserver_that_answers_403_for_its_first_two_seconds() {
    sandbox::run("failover::ten_restarts_of_an_apiserver_that_answers_403_for_its_first_two_seconds", |sandbox| {
        const STARTING: Duration = Duration::from_secs(2);
        let host = Host::new(sandbox);
        let cluster = cluster_at(&[FIRST]);
        let mut server = serve(&cluster, FIRST);
        join(&host, &cluster, &[FIRST]);
        let daemon = host.start();
        let writer = Writer::start(&cluster);
        settle(&writer);
        let mut figures = Vec::new();
        for round in 0..10 {
            server.stop();
            std::thread::sleep(Duration::from_millis(700 * (1 + round)));
            let listener = std::net::TcpListener::bind(FIRST).unwrap();
            let behaviour = Behaviour { starting: Some((STARTING, 403)), ..Behaviour::default() };
            let is_ready = Instant::now() + STARTING;
            server = serve_with(&cluster, listener, ServeOptions { behaviour, ..ServeOptions::default() });
            std::thread::sleep(is_ready.saturating_duration_since(Instant::now()));
            let before = writer.last();
            eventually("changes after a restart", || newest() > before);
            figures.push(is_ready.elapsed());
            check(&format!("restart {round}"), RESTARTED, is_ready.elapsed());
        }
        say(&format!("from ready to the first change, ten restarts: {figures:.2?}"));
        writer.finish(&host);
        daemon.stop();
    });
}
