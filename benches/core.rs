//! scratch
use nodelb_core::{addr::*, change::*, datapath::*, engine::*, memory::*, service::*};
use std::collections::BTreeSet;
use std::time::Instant;
fn main() {
    let n: u32 = 50_000;
    let rss = || {
        std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let changes: Vec<Change> = (0..n)
        .flat_map(|i| {
            let name = ServiceName::new(&format!("ns-{}", i % 100), &format!("service-{i}"));
            let b = i.to_be_bytes();
            let fe = Addr::from(std::net::IpAddr::from([198, b[1], b[2], b[3]]));
            let be = Addr::from(std::net::IpAddr::from([10, b[1], b[2], b[3]]));
            let svc = Service {
                name: name.clone(),
                source: Source::Files,
                origin: Origin::default(),
                created: Some(u64::from(i)),
                ports: vec![ServicePort {
                    name: "http".into(),
                    protocol: Protocol::Tcp,
                    frontends: vec![FrontendSpec { addr: fe, port: 80, kind: FrontendKind::ClusterIP }],
                }],
                internal_policy: TrafficPolicy::Cluster,
                external_policy: TrafficPolicy::Cluster,
                affinity_seconds: None,
            };
            let sl = Slice {
                name: SliceName::new(&name.namespace, &format!("service-{i}-abcde")),
                service: name,
                source: Source::Files,
                origin: Origin::default(),
                ports: vec![SlicePort {
                    name: "http".into(),
                    protocol: Protocol::Tcp,
                    backends: vec![Backend::new(be, 8080)],
                }],
            };
            [Change::UpsertService(svc), Change::UpsertSlice(sl)]
        })
        .collect();
    for _ in 0..3 {
        let changes = changes.clone();
        let mut dp = MemoryDatapath::new(Limits { frontends: 131072, services: 65536, slots: 524288, affinity: 1024 });
        let mut e = Engine::new(
            EngineConfig { sources: BTreeSet::from([Source::Files]), max_services: 65536, ..Default::default() },
            dp.dump().unwrap(),
        );
        let r0 = rss();
        let t = Instant::now();
        for c in changes {
            e.change(c);
        }
        let t1 = t.elapsed();
        e.change(Change::Synced { source: Source::Files, incomplete: None });
        let r = e.reconcile(&mut dp, Moment(0));
        let el = t.elapsed();
        println!(
            "{} ops, change {} ns/svc, total {} ns/svc, rss/svc {}",
            r.done,
            t1.as_nanos() / u128::from(n),
            el.as_nanos() / u128::from(n),
            (rss() - r0) / n as usize
        );
        // single
        let s = e.snapshot(Moment(0));
        let mut lat = vec![];
        let mut keep = s;
        for k in 0..2000u32 {
            let name = ServiceName::new(&format!("ns-{}", k % 100), &format!("service-{k}"));
            let sl = Slice {
                name: SliceName::new(&name.namespace, &format!("service-{k}-abcde")),
                service: name,
                source: Source::Files,
                origin: Origin::default(),
                ports: vec![SlicePort {
                    name: "http".into(),
                    protocol: Protocol::Tcp,
                    backends: vec![Backend::new(Addr::from(std::net::IpAddr::from([11, 1, 2, 3])), 8080)],
                }],
            };
            let t = Instant::now();
            e.change(Change::UpsertSlice(sl));
            e.reconcile(&mut dp, Moment(1));
            lat.push(t.elapsed().as_nanos());
            keep = e.snapshot(Moment(1));
        }
        drop(keep);
        lat.sort();
        println!("single p50 {} p99 {} max {}", lat[1000], lat[1980], lat[1999]);
    }
}
