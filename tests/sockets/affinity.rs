//! Session affinity: a client, which is a network namespace, keeps its backend.

use std::thread::sleep;
use std::time::Duration;

use nodelb_core::addr::L4Addr;
use nodelb_core::state::ServiceEntry;

use super::{Kernel, Manner, backends, dial, entry, in_sandbox, l4, options, point, put};

const ALL: [&str; 5] =
    ["192.0.2.10:80/TCP", "192.0.2.11:80/TCP", "192.0.2.12:80/TCP", "192.0.2.13:80/TCP", "192.0.2.14:80/TCP"];

fn with(backends: &[&str], affinity_seconds: u32) -> ServiceEntry {
    ServiceEntry { affinity_seconds, ..entry(backends) }
}

fn reached() -> L4Addr {
    dial(Manner::Tcp, "198.51.100.1:80".parse().unwrap()).unwrap().backend
}

#[test]
fn a_client_keeps_its_backend_while_others_come_and_go() {
    in_sandbox("sockets::affinity::a_client_keeps_its_backend_while_others_come_and_go", |env| {
        let options = options(env);
        let mut kernel = Kernel::open(&options);
        backends(&ALL);
        kernel.apply(&[put(1, with(&ALL, 3600)), point("198.51.100.1:80/TCP", 1)]);
        let first = reached();
        let others: Vec<&str> = ALL.into_iter().filter(|addr| l4(addr) != first).collect();
        for gone in 0..=others.len() {
            let mut left: Vec<&str> = others[gone..].to_vec();
            let name = first.to_string();
            left.push(&name);
            left.sort_unstable();
            kernel.apply(&[put(1, with(&left, 3600))]);
            assert_eq!(reached(), first, "{gone} others gone");
        }
        kernel.apply(&[put(1, with(&ALL, 3600))]);
        for _ in 0..20 {
            assert_eq!(reached(), first, "all others back");
        }
        drop(kernel);
        let mut kernel = Kernel::open(&options);
        assert_eq!(reached(), first, "after a restart");

        kernel.apply(&[put(1, with(&others, 3600))]);
        let second = reached();
        assert_ne!(second, first, "its backend is gone");
        kernel.apply(&[put(1, with(&ALL, 3600))]);
        for _ in 0..20 {
            assert_eq!(reached(), second, "the first backend's return changes nothing");
        }
    });
}

#[test]
fn affinity_ends_when_the_client_stays_away() {
    in_sandbox("sockets::affinity::affinity_ends_when_the_client_stays_away", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&ALL);
        kernel.apply(&[put(1, with(&ALL, 1)), point("198.51.100.1:80/TCP", 1)]);
        let first = reached();
        for _ in 0..8 {
            sleep(Duration::from_millis(300));
            assert_eq!(reached(), first, "each connection renews it");
        }
        // Five free choices among five backends are the same one time in 3125 for each try.
        let moved = (0..6).any(|_| {
            sleep(Duration::from_millis(1_100));
            reached() != first
        });
        assert!(moved, "still {first} after six times longer than a second away");
    });
}

#[test]
fn without_affinity_connections_spread() {
    in_sandbox("sockets::affinity::without_affinity_connections_spread", |env| {
        let mut kernel = Kernel::open(&options(env));
        backends(&ALL);
        kernel.apply(&[put(1, with(&ALL, 0)), point("198.51.100.1:80/TCP", 1)]);
        let mut seen: Vec<L4Addr> = (0..200).map(|_| reached()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), ALL.len());
    });
}
