use super::super::problem::{Shared, SharedCause};
use super::*;
use crate::time::Time;

fn problem(service: &str, at: u64, cause: Option<SharedCause>) -> Problem {
    let problem = Problem::new(Reason::BackendsQuarantined, service, format!("{service} has failed backends"));
    problem.since(Some(Time(at))).shared(cause)
}

fn dead(host: &str, why: &str) -> Option<SharedCause> {
    let of = Shared::Hosts(host.split(' ').map(|host| host.parse().unwrap()).collect());
    Some(SharedCause { of, what: format!("backends there failed ({why})"), command: "nodelb backends" })
}

/// A dead host with 54 services was 54 rows, and the critical one among them was saved by the order alone (C1 of the
/// operators' findings).
#[test]
fn services_with_one_cause_share_a_row() {
    let mut found: Vec<Problem> =
        (0..54).map(|n| problem(&format!("shop/{n:02}"), 100 + n, dead("192.0.2.1", "refused"))).collect();
    found.push(problem("shop/alone", 1, None));
    found.push(problem("shop/other-host", 1, dead("192.0.2.2", "refused")));
    found.push(problem("shop/other-way", 1, dead("192.0.2.1", "no answer")));
    let critical = problem("shop/critical", 1, dead("192.0.2.1", "refused")).severity(Severity::Critical);
    found.push(critical.clone());
    let joined = join(found);
    let row = joined.iter().find(|problem| !problem.services.is_empty()).unwrap();
    assert_eq!(row.object, "192.0.2.1");
    assert_eq!(row.cause, "54 services: backends there failed (refused): shop/00, shop/01, shop/02 and 51 more");
    assert_eq!((&*row.command, row.since), ("nodelb backends 192.0.2.1", Some(Time(100))));
    assert_eq!((row.services.len(), row.is_of("shop/53"), row.is_of("shop/54")), (54, true, false));
    let mut others: Vec<&str> = joined.iter().filter(|it| it.services.is_empty()).map(|it| &*it.object).collect();
    others.sort_unstable();
    assert_eq!(others, ["shop/alone", "shop/critical", "shop/other-host", "shop/other-way"]);
    assert!(joined.contains(&critical), "a worse one stays alone");
}

#[test]
fn services_on_the_same_hosts_share_a_row() {
    let hosts = "192.0.2.1 192.0.2.2 192.0.2.3";
    let joined = join(vec![problem("shop/a", 1, dead(hosts, "refused")), problem("shop/b", 2, dead(hosts, "refused"))]);
    let [row] = &joined[..] else { panic!("{joined:?}") };
    assert_eq!((&*row.object, &*row.command), ("192.0.2.1, 192.0.2.2 and 1 more", "nodelb backends 192.0.2.1"));
    let less = dead("192.0.2.1 192.0.2.2", "refused");
    assert_eq!(join(vec![problem("shop/a", 1, dead(hosts, "refused")), problem("shop/b", 2, less)]).len(), 2);
}

#[test]
fn services_of_which_no_failed_backend_is_known_stay_alone() {
    let none = || Shared::Hosts(BTreeSet::new());
    let unknown = || Some(SharedCause { of: none(), what: "failed".into(), command: "nodelb backends" });
    let found = vec![problem("shop/a", 1, unknown()), problem("shop/b", 1, unknown())];
    assert_eq!(join(found.clone()), found);
}

/// 54 services with names of a DNS server that was down were 54 rows (C1 of the operators' findings).
#[test]
fn services_that_wait_for_the_same_dns_servers_share_a_row() {
    let waits = |service: &str, at: u64, what: &str| {
        let of = Shared::Part("DNS names");
        problem(service, at, Some(SharedCause { of, what: what.into(), command: "nodelb dns" }))
    };
    let silent = "held: 192.0.2.53:53 did not answer within 2 s";
    let mut found: Vec<Problem> = (0..54).map(|n| waits(&format!("shop/{n:02}"), 100 + n, silent)).collect();
    found.push(waits("shop/other", 1, "held: 192.0.2.53:53 answers SERVFAIL"));
    let joined = join(found);
    let [alone, row] = &joined[..] else { panic!("{joined:#?}") };
    assert_eq!((&*alone.object, alone.services.len()), ("shop/other", 0));
    assert_eq!((&*row.object, &*row.command, row.since), ("DNS names", "nodelb dns", Some(Time(100))));
    assert_eq!(row.cause, format!("54 services: {silent}: shop/00, shop/01, shop/02 and 51 more"));
    assert_eq!((row.services.len(), row.is_of("shop/53")), (54, true));
}
