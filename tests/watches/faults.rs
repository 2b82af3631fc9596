//! Each fault on its own.

use std::time::{Duration, Instant};

use nodelb_apiserver::{EventFault, Fault, On, Patch, WatchList};
use nodelb_kube::api::decode::Kind;
use serde_json::json;

use crate::objects::{self, frontend};
use crate::rig::{Rig, is_resumed};

/// Enough objects that a list without most of them is doubted.
const MANY: u64 = 12;

const BOTH: [Kind; 2] = [Kind::Service, Kind::EndpointSlice];

fn extra(backend: u64) -> serde_json::Value {
    objects::slice("s0", 7, &[format!("203.0.113.{backend}")])
}

#[test]
fn a_version_that_is_too_old() {
    let rig = Rig::shop(2);
    for as_status in [false, true] {
        rig.replica.faults().behave(|behaviour| behaviour.expired_as_status = as_status);
        rig.apply(extra(1));
        rig.converge("an extra slice");
        rig.away(|cluster| {
            cluster.delete("endpointslices", "ns", "s0-7").expect("was there");
            cluster.compact();
        });
        rig.converge("410 for a version that is too old");
    }
    for kind in BOTH {
        let faults = rig.replica.faults();
        faults.answer_next(1, On::watch(kind.resource()), Fault::Status { code: 410, retry_after: None });
        faults.end_watches();
        rig.apply(extra(2));
        rig.converge("410 as a status");
        faults.answer_next(1, On::watch(kind.resource()), Fault::ErrorEvent { code: 410 });
        faults.end_watches();
        rig.apply(extra(3));
        rig.converge("410 as the first event");
        faults.events_next(1, kind.resource(), EventFault::Error { code: 410 });
        rig.apply(extra(4));
        rig.converge("410 among events");
    }
}

#[test]
fn json_that_is_cut() {
    let rig = Rig::shop(3);
    let faults = rig.replica.faults();
    for (number, after) in [0, 1, 9, 30, 100, 250, 700, 1500].into_iter().enumerate() {
        faults.events_next(1, "endpointslices", EventFault::Cut { after });
        rig.apply(extra(number as u64));
        rig.converge("an event that is cut");
        for fault in [Fault::Cut { after }, Fault::Truncate { after }] {
            for kind in BOTH {
                faults.answer_next(1, On::resource(kind.resource()), fault.clone());
            }
            faults.expire_watches();
            rig.apply(extra(100 + number as u64));
            rig.converge("a list that is cut");
        }
    }
}

#[test]
fn streaming_lists_that_never_get_through_are_asked_for_in_pages() {
    let rig = Rig::shop(6);
    let faults = rig.replica.faults();
    faults.answer(On::watch("endpointslices"), Fault::Cut { after: 900 });
    rig.requests(Kind::EndpointSlice);
    faults.expire_watches();
    // The last one of the list.
    rig.apply(objects::slice("s5", 7, &["203.0.113.1".into()]));
    rig.converge("only lists in pages get through");
    // On a machine that stood still, there may have been no watch that could expire.
    let mut expired = Instant::now();
    rig.node.wait("a list in pages", |_| {
        let asked = rig.requests(Kind::EndpointSlice);
        if expired.elapsed() > Duration::from_secs(2) {
            faults.expire_watches();
            expired = Instant::now();
        }
        if asked.iter().any(|line| line.contains("limit=3")) { Ok(()) } else { Err(format!("{asked:?}")) }
    });
}

#[test]
fn events_twice_and_out_of_order() {
    let rig = Rig::shop(2);
    let faults = rig.replica.faults();
    for fault in [EventFault::Duplicate, EventFault::Swap] {
        for kind in BOTH {
            faults.events_next(1, kind.resource(), fault.clone());
        }
        rig.apply(extra(1));
        rig.apply(extra(2));
        rig.apply(objects::service("new", 50));
        rig.apply(objects::service("newer", 51));
        rig.converge("written twice");
        for kind in BOTH {
            faults.events_next(1, kind.resource(), fault.clone());
        }
        rig.cluster.delete("endpointslices", "ns", "s0-7").expect("was there");
        rig.apply(extra(3));
        rig.cluster.delete("services", "ns", "new").expect("was there");
        rig.apply(objects::service("new", 52));
        rig.converge("deleted and created");
        for kind in BOTH {
            faults.events_next(1, kind.resource(), fault.clone());
        }
        rig.apply(objects::slice("never", 1, &["203.0.113.1".into()]));
        rig.cluster.delete("endpointslices", "ns", "never-1").expect("was there");
        rig.apply(objects::service("never", 53));
        rig.cluster.delete("services", "ns", "never").expect("was there");
        rig.cluster.delete("services", "ns", "new").expect("was there");
        rig.cluster.delete("services", "ns", "newer").expect("was there");
        rig.converge("created and deleted");
    }
}

#[test]
fn slices_before_services() {
    let cluster = nodelb_apiserver::Cluster::new().expect("a cluster");
    objects::pair(1).into_iter().for_each(|object| cluster.apply_value(object).expect("valid"));
    let failing = Fault::Status { code: 503, retry_after: None };
    let rig = Rig::of(cluster, nodelb_apiserver::ServeOptions::default(), |faults| {
        faults.answer_next(5, On::path(Kind::Service.path()), failing);
    });
    rig.watch(&frontend(1), None);
    rig.converge("Services are listed late");
    rig.apply(objects::slice("late", 1, &["203.0.113.1".into()]));
    rig.converge("a slice without a service");
    rig.apply(objects::service("late", 9));
    rig.converge("its service");
    assert_eq!(rig.node.observer().backends(&frontend(9)), ["203.0.113.1:8080/TCP"]);
}

#[test]
fn deleted_while_disconnected() {
    let rig = Rig::shop(3);
    rig.apply(extra(1));
    rig.apply(objects::service("gone", 9));
    rig.converge("more");
    rig.away(|cluster| {
        cluster.delete("endpointslices", "ns", "s0-7").expect("was there");
        cluster.delete("services", "ns", "gone").expect("was there");
    });
    rig.converge("deleted while disconnected");
}

#[test]
fn deleted_and_created_again() {
    let rig = Rig::shop(3);
    let again = |cluster: &nodelb_apiserver::Cluster| {
        for kind in BOTH {
            let name = if kind == Kind::Service { "t" } else { "t-0" };
            _ = cluster.delete(kind.resource(), "ns", name);
        }
        // With other content and other UIDs.
        cluster.apply_value(objects::service("t", 60 + cluster.revision() % 100)).expect("valid");
        cluster.apply_value(objects::slice("t", 0, &["203.0.113.1".into()])).expect("valid");
    };
    for _ in 0..5 {
        again(&rig.cluster);
    }
    rig.converge("again and again within a batch");
    rig.away(again);
    rig.converge("while disconnected");
    rig.away(|cluster| {
        again(cluster);
        cluster.compact();
    });
    rig.converge("while disconnected, with history gone");
    // Equal content: only the UID differs.
    rig.away(|cluster| {
        cluster.delete("services", "ns", "s1").expect("was there");
        cluster.apply_value(objects::service("s1", 1)).expect("valid");
        cluster.compact();
    });
    rig.converge("the same again");
}

#[test]
fn slices_renamed_and_endpoints_moved() {
    let rig = Rig::shop(2);
    rig.apply(objects::slice("s0", 1, &["192.0.2.0".into()]));
    rig.cluster.delete("endpointslices", "ns", "s0-0").expect("was there");
    rig.converge("renamed");
    rig.apply(objects::slice("s0", 2, &["203.0.113.1".into()]));
    rig.apply(objects::slice("s0", 2, &["203.0.113.1".into(), "192.0.2.0".into()]));
    rig.apply(objects::slice("s0", 1, &[]));
    rig.converge("moved");
    rig.away(|cluster| {
        cluster.apply_value(objects::slice("s0", 1, &["192.0.2.0".into()])).expect("valid");
        cluster.apply_value(objects::slice("s0", 2, &[])).expect("valid");
        cluster.delete("endpointslices", "ns", "s1-0").expect("was there");
        cluster.apply_value(objects::slice("s1", 3, &["192.0.2.1".into()])).expect("valid");
        cluster.compact();
    });
    rig.converge("both while disconnected");
}

#[test]
fn incomplete_lists() {
    let rig = Rig::shop(MANY);
    let faults = rig.replica.faults();
    for mode in [WatchList::On, WatchList::Off] {
        faults.behave(|behaviour| behaviour.watch_list = mode);
        for kind in BOTH {
            for items in [0, 1, 2] {
                let list = if mode == WatchList::On { On::watch(kind.resource()) } else { On::list(kind.resource()) };
                faults.answer_next(1, list, Fault::Keep { items });
                rig.requests(kind);
                let (mut lists, mut polls) = (0, 0);
                rig.node.wait("a second list", |_| {
                    // A watch that has not started yet expires the next time. A list that is broken off several times
                    // would be asked for in pages.
                    if lists == 0 && polls % 50 == 0 && rig.node.is_watching().is_ok() {
                        faults.expire_watches();
                    }
                    polls += 1;
                    let asked = rig.requests(kind);
                    lists += asked.iter().filter(|line| is_list(line, mode) && !line.contains("continue=")).count();
                    if lists >= 2 { Ok(()) } else { Err(format!("{lists} lists")) }
                });
                rig.apply(extra(items as u64));
                rig.converge("a list that lies");
                // A watch that continues shows that the second list is complete; otherwise the next
                // wrong list would be the second in a row.
                rig.requests(kind);
                rig.node.wait("the end of the second list", |_| {
                    let asked = rig.requests(kind);
                    if asked.iter().any(|line| is_resumed(line)) { Ok(()) } else { Err(format!("{asked:?}")) }
                });
            }
        }
    }
}

fn is_list(line: &str, mode: WatchList) -> bool {
    if mode == WatchList::On { line.contains("sendInitialEvents") } else { !line.contains("watch=true") }
}

#[test]
fn truly_empty_lists() {
    let rig = Rig::start((0..MANY).flat_map(objects::pair));
    rig.converge("the beginning");
    rig.away(|cluster| {
        for number in 0..MANY {
            cluster.delete("services", "ns", &format!("s{number}")).expect("was there");
            cluster.delete("endpointslices", "ns", &format!("s{number}-0")).expect("was there");
        }
        cluster.compact();
    });
    rig.converge("everything is gone");
}

#[test]
fn too_many_requests() {
    let rig = Rig::shop(2);
    let faults = rig.replica.faults();
    for kind in BOTH {
        let busy = Fault::Status { code: 429, retry_after: Some(1) };
        faults.answer_next(1, On::path(kind.path()), busy);
        rig.requests(kind);
        let begun = Instant::now();
        faults.end_watches();
        let mut asked = 0;
        rig.node.wait("the next try", |_| {
            asked += rig.requests(kind).len();
            if asked >= 2 { Ok(()) } else { Err(format!("{asked} requests")) }
        });
        assert!(begun.elapsed() >= Duration::from_millis(950), "Retry-After: 1, tried after {:?}", begun.elapsed());
        rig.apply(extra(1));
        rig.converge("429");
    }
}

#[test]
fn the_retry_after_of_a_server_error_holds_up_a_watch_no_longer_than_any_failure() {
    let rig = Rig::shop(2);
    for kind in BOTH {
        let unavailable = Fault::Status { code: 503, retry_after: Some(60) };
        rig.replica.faults().answer_next(1, On::path(kind.path()), unavailable);
        rig.replica.faults().end_watches();
        rig.apply(extra(1));
        rig.apply(objects::service("new", 9));
        rig.converge("503 with Retry-After: 60");
    }
}

#[test]
fn storms_of_errors() {
    let rig = Rig::shop(3);
    for code in [500, 502, 503, 504] {
        rig.replica.faults().answer(On::any(), Fault::Status { code, retry_after: None });
        rig.replica.faults().end_watches();
        rig.apply(extra(u64::from(code % 100)));
        std::thread::sleep(Duration::from_millis(200));
        rig.replica.faults().clear();
        rig.converge("a storm");
    }
}

#[test]
fn streams_that_fall_silent() {
    let rig = Rig::shop(2);
    let faults = rig.replica.faults();
    for kind in BOTH {
        faults.events_next(1, kind.resource(), EventFault::Silence);
        rig.apply(extra(1));
        rig.apply(objects::service("new", 9));
        rig.converge("silence in a stream");
        faults.answer_next(1, On::watch(kind.resource()), Fault::Silence);
        faults.expire_watches();
        rig.apply(extra(2));
        rig.converge("a streaming list that is silent");
        faults.answer_next(1, On::resource(kind.resource()), Fault::Stall);
        faults.end_watches();
        rig.apply(extra(3));
        rig.converge("no answer at all");
    }
}

#[test]
fn a_cluster_that_goes_back_in_time() {
    for alpn in ["h2", "http/1.1"] {
        let rig = Rig::over(&[alpn]);
        (0..3).flat_map(objects::pair).for_each(|object| rig.apply(object));
        (0..3).for_each(|number| rig.watch(&frontend(number), Some(&objects::backend(number))));
        rig.apply(extra(1));
        rig.converge("the beginning");
        let backup = rig.cluster.backup();
        // The same versions with other content, new objects, and deleted ones.
        rig.apply(extra(2));
        rig.apply(objects::service("new", 9));
        rig.cluster.delete("endpointslices", "ns", "s0-7").expect("was there");
        rig.cluster.advance(100);
        rig.converge("later");
        rig.cluster.restore_backup(&backup);
        rig.apply(extra(3));
        rig.reconnect();
        rig.converge("restored");
        rig.apply(extra(4));
        rig.converge("and on from there");
    }
}

#[test]
fn an_error_answer_to_a_watch_leads_to_a_list() {
    let rig = Rig::shop(2);
    let faults = rig.replica.faults();
    faults.behave(|behaviour| behaviour.watch_list = WatchList::Off);
    for code in [400, 404, 405, 500, 503] {
        for kind in BOTH {
            faults.answer(On::watch(kind.resource()), Fault::Status { code, retry_after: None });
        }
        faults.end_watches();
        for number in 0..3 {
            rig.apply(extra(number));
            rig.cluster.patch("services", "ns", "s1", &touched(number)).expect("valid");
            rig.converge("watches are refused, lists are not");
        }
        faults.clear();
    }
}

fn touched(number: u64) -> Patch {
    Patch::Merge(json!({"metadata": {"annotations": {"touched": number.to_string()}}}))
}

/// EndpointSlices or Services have their own etcd, as with `--etcd-servers-overrides`.
#[test]
fn a_kind_with_versions_of_its_own_is_compared_with_itself_alone() {
    for (apart, alpn) in
        [("endpointslices", "h2"), ("services", "h2"), ("endpointslices", "http/1.1"), ("services", "http/1.1")]
    {
        let rig = Rig::over(&[alpn]);
        rig.cluster.separate_versions(apart, 5_000_000).expect("served");
        (0..3).flat_map(objects::pair).for_each(|object| rig.apply(object));
        rig.apply(extra(1));
        rig.converge("the beginning");
        for number in 2..5 {
            rig.reconnect();
            rig.apply(extra(number));
            rig.converge("another session");
        }
        let journal = rig.take_journal();
        assert!(!journal.contains("was restored"), "{apart} {alpn}: {journal}");
        let backup = rig.cluster.backup();
        rig.apply(extra(5));
        rig.cluster.delete("endpointslices", "ns", "s0-7").expect("was there");
        rig.apply(objects::service("new", 9));
        rig.cluster.advance(100);
        rig.converge("later");
        rig.cluster.restore_backup(&backup);
        rig.reconnect();
        rig.converge("restored");
        let journal = rig.take_journal();
        for kind in BOTH {
            assert!(
                journal.contains(&format!("{}: the cluster was restored", kind.resource())),
                "{apart} {alpn}: {journal}"
            );
        }
    }
}

#[test]
fn a_session_that_is_replaced_while_there_are_many_writes_is_no_restore() {
    let rig = Rig::shop(3);
    rig.take_journal();
    for round in 0..15 {
        rig.renew_certificate();
        for write in 0..30 {
            rig.apply(extra(round * 30 + write));
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    rig.converge("after many certificates");
    let journal = rig.take_journal();
    assert!(journal.matches("the credentials for the apiservers have changed").count() > 5, "{journal}");
    assert!(!journal.contains("was restored"), "{journal}");
    let lists = rig.requests(Kind::EndpointSlice).iter().filter(|line| line.contains("sendInitialEvents")).count();
    assert_eq!(lists, 1, "the one at the start");
}

/// As with `--goaway-chance`, which real apiservers use to distribute clients.
#[test]
fn a_server_that_drains_its_connections_has_not_failed() {
    let rig = Rig::shop(3);
    rig.take_journal();
    for number in 0..30 {
        rig.replica.faults().go_away();
        if number % 2 == 0 {
            rig.replica.faults().end_watches();
        }
        rig.apply(extra(number));
        rig.converge("a drained connection");
    }
    let journal = rig.take_journal();
    let is_of_server = |line: &str| line.contains("WARN") && line.contains("apiserver");
    assert!(!journal.lines().any(is_of_server) && !journal.contains("was restored"), "{journal}");
    let lists = rig.requests(Kind::EndpointSlice).iter().filter(|line| line.contains("sendInitialEvents")).count();
    assert_eq!(lists, 1, "the one at the start");
}

/// Behind a load balancer the next connection of the same session may reach another server. Here it opens only when a
/// watch requests it, and is not the one that the watcher has looked over.
#[test]
fn a_restored_cluster_is_noticed_over_the_connection_that_follows_a_drained_one() {
    let rig = Rig::patient_shop(2);
    let faults = rig.replica.faults();
    let backup = rig.cluster.backup();
    (0..5).for_each(|number| rig.apply(extra(number)));
    // A connection that is drained while it is young has no successor before a request needs one.
    faults.go_away();
    faults.end_watches();
    rig.apply(extra(5));
    rig.converge("a young connection");
    rig.cluster.restore_backup(&backup);
    faults.go_away();
    faults.end_watches();
    rig.apply(extra(6));
    rig.converge("restored");
}

/// The other connection has been opened by the watcher of Services before the cluster is restored: only the others can
/// notice.
#[test]
fn a_restored_cluster_is_noticed_by_a_watch_that_ends_after_its_connection_has_a_successor() {
    let rig = Rig::patient_shop(2);
    let faults = rig.replica.faults();
    let backup = rig.cluster.backup();
    (0..5).for_each(|number| rig.apply(extra(number)));
    rig.converge("later");
    faults.go_away();
    faults.events_next(1, "services", EventFault::Error { code: 500 });
    rig.apply(objects::service("new", 9));
    rig.converge("Services over the next connection");
    rig.cluster.restore_backup(&backup);
    faults.end_watches();
    rig.apply(extra(6));
    rig.converge("restored");
}

/// The versions of a restored cluster that has passed those from before show nothing; one of them stands for other content.
#[test]
fn a_list_that_follows_a_failure_takes_no_equal_version_for_equal_content() {
    let rig = Rig::shop(2);
    rig.apply(extra(1));
    for number in [2, 4] {
        let backup = rig.cluster.backup();
        rig.apply(extra(number));
        rig.converge("a slice that changes");
        rig.away(|cluster| {
            cluster.restore_backup(&backup);
            cluster.apply_value(extra(number + 1)).expect("a valid object");
            cluster.advance(300);
            cluster.compact();
        });
        rig.converge("410, and the same version with other content");
        let journal = rig.take_journal();
        assert!(!journal.contains("was restored"), "no version shows it: {journal}");
    }
}

#[test]
fn one_401_repeats_that_request_alone() {
    let rig = Rig::shop(2);
    rig.requests(Kind::Service);
    for number in 0..5 {
        let unauthorized = Fault::Status { code: 401, retry_after: None };
        rig.replica.faults().events_next(1, "endpointslices", EventFault::Error { code: 500 });
        rig.replica.faults().answer_next(1, On::resource("endpointslices"), unauthorized);
        rig.apply(extra(number));
        rig.converge("one 401");
    }
    let resource = |kind: Kind, seen: &[String]| {
        seen.iter().filter(|line| line.starts_with(&format!("GET {}?", kind.path()))).count()
    };
    let seen = rig.replica.faults().take_requests();
    assert!(resource(Kind::EndpointSlice, &seen) >= 10, "{seen:#?}");
    // Its watch may be silent for long enough to be restarted.
    let other = seen.iter().filter(|line| line.contains("/namespaces/default/services")).count();
    assert_eq!(other, 0, "no session was opened: {seen:#?}");
}

/// Waits until a new session has sent its first request.
fn wait_for_session(rig: &Rig) {
    wait_for_request(rig, "/namespaces/default/services");
}

fn wait_for_request(rig: &Rig, path: &str) {
    let mut seen = Vec::new();
    rig.node.wait("a request", |_| {
        seen.extend(rig.replica.faults().take_requests());
        let is_sent = seen.iter().any(|line| line.contains(path));
        if is_sent { Ok(()) } else { Err(format!("{path}: {seen:?}")) }
    });
}

/// Restores a backup, and delays the requests of the kind until its versions have passed the old
/// ones.
fn restore_and_pass(rig: &Rig, kind: Kind, backup: &nodelb_apiserver::Backup, write: serde_json::Value) {
    let faults = rig.replica.faults();
    rig.cluster.restore_backup(backup);
    // The delay of a second is enough for the writes.
    faults.answer_next(1, On::path(kind.path()), Fault::Status { code: 429, retry_after: Some(1) });
    faults.take_requests();
    faults.reset_connections();
    // The session is complete, with the revision of the restored cluster, when the kind sends its own request.
    wait_for_request(rig, kind.path());
    rig.apply(write);
    rig.cluster.advance(300);
}

#[test]
fn a_restore_that_the_first_question_shows_counts_also_when_writes_follow() {
    let rig = Rig::shop(2);
    let backup = rig.cluster.backup();
    for number in 0..5 {
        rig.apply(objects::service(&format!("new{number}"), 20 + number));
    }
    rig.cluster.advance(10);
    rig.converge("later");
    restore_and_pass(&rig, Kind::Service, &backup, objects::service("new", 9));
    rig.converge("a Service that was written after the first question");
}

/// Services alone cannot detect it: no bookmark has reported the revision of the cluster to their
/// watcher.
#[test]
fn a_restore_that_the_first_question_shows_counts_for_other_kinds_of_the_same_etcd() {
    let rig = Rig::shop(2);
    rig.replica.faults().behave(|behaviour| behaviour.bookmarks = None);
    let backup = rig.cluster.backup();
    (0..5).for_each(|number| rig.apply(extra(number)));
    rig.converge("later");
    restore_and_pass(&rig, Kind::EndpointSlice, &backup, extra(9));
    rig.converge("a slice that was written after the first question");
}

#[test]
fn a_kind_with_versions_of_its_own_is_not_listed_again_over_another_session() {
    for apart in ["endpointslices", "services"] {
        let rig = Rig::over(&["h2"]);
        rig.cluster.separate_versions(apart, 5_000_000).expect("served");
        (0..3).flat_map(objects::pair).for_each(|object| rig.apply(object));
        rig.converge("the beginning");
        let mut lists = Vec::new();
        for number in 0..5 {
            rig.replica.faults().take_requests();
            rig.replica.faults().reset_connections();
            wait_for_session(&rig);
            rig.apply(extra(number));
            rig.apply(objects::service(&format!("new{number}"), 20 + number));
            rig.converge("another session");
            lists.extend(rig.replica.faults().take_requests());
        }
        // A missing Node is requested twice.
        lists.retain(|line| line.contains("sendInitialEvents") && !line.contains(Kind::Node.path()));
        assert!(lists.is_empty(), "{apart}: {lists:#?}");
    }
}

#[test]
fn a_restore_that_one_kind_notices_counts_for_all_kinds() {
    let rig = Rig::shop(2);
    rig.replica.faults().behave(|behaviour| behaviour.bookmarks = None);
    let backup = rig.cluster.backup();
    for number in 0..5 {
        rig.apply(objects::service(&format!("new{number}"), 20 + number));
    }
    rig.converge("later");
    rig.cluster.restore_backup(&backup);
    rig.requests(Kind::EndpointSlice);
    rig.replica.faults().reset_connections();
    let mut asked = Vec::new();
    rig.node.wait("a list of EndpointSlices, whose own versions show nothing", |_| {
        asked.extend(rig.requests(Kind::EndpointSlice));
        if asked.iter().any(|line| is_list(line, WatchList::On)) { Ok(()) } else { Err(format!("{asked:?}")) }
    });
    rig.converge("restored");
}
