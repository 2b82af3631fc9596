use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::net::TcpListener;

use super::*;
use crate::lb_health::answer::Answer;
use crate::lb_health::listen::Bounds;
use crate::lb_health::tests::{HERE, ask, free};

type Wanted = BTreeMap<SocketAddr, &'static str>;

/// Every socket answers with the name of its user.
async fn want(doors: &mut Listeners<&'static str>, wanted: &Wanted) {
    let reply = |_: SocketAddr, label: &&'static str| -> Reply {
        let label = *label;
        Arc::new(move |_| Answer::json(true, label.to_owned(), SystemTime::UNIX_EPOCH))
    };
    doors.want(wanted, reply).await;
}

fn doors(retry: Duration) -> Listeners<&'static str> {
    Listeners::new(Places::new(Bounds::within(1024)), 3, retry)
}

async fn said(at: SocketAddr) -> Option<String> {
    let answer = ask(at, "/").await.ok()?;
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

#[tokio::test]
async fn what_is_wanted_is_open_and_nothing_else() {
    let mut doors = doors(Duration::from_secs(60));
    let [a, b] = [free().await, free().await];
    want(&mut doors, &Wanted::from([(a, "a"), (b, "b")])).await;
    assert_eq!((said(a).await.as_deref(), said(b).await.as_deref()), (Some("a"), Some("b")));
    want(&mut doors, &Wanted::from([(a, "another")])).await;
    assert_eq!((said(a).await.as_deref(), said(b).await), (Some("another"), None));
    want(&mut doors, &Wanted::new()).await;
    assert_eq!((said(a).await, doors.failed().count()), (None, 0));
}

#[tokio::test]
async fn what_fails_is_tried_again_when_its_time_has_come() {
    let taken = TcpListener::bind((HERE, 0)).await.expect("a port");
    let (bad, good) = (taken.local_addr().expect("an address"), free().await);
    let mut doors = doors(Duration::from_millis(300));
    let wanted = Wanted::from([(bad, "bad"), (good, "good")]);
    want(&mut doors, &wanted).await;
    assert_eq!(said(good).await.as_deref(), Some("good"), "the others go on");
    assert_eq!(doors.failed().map(|(at, label, _)| (at, *label)).collect::<Vec<_>>(), [(bad, "bad")]);
    drop(taken);
    want(&mut doors, &wanted).await;
    assert_eq!(doors.failed().count(), 1, "not with every change");
    doors.retry_is_due().await;
    want(&mut doors, &wanted).await;
    assert_eq!((doors.failed().count(), said(bad).await.as_deref()), (0, Some("bad")));
}

#[tokio::test]
async fn what_failed_and_is_not_wanted_any_more_is_forgotten() {
    let taken = TcpListener::bind((HERE, 0)).await.expect("a port");
    let mut doors = doors(Duration::from_millis(1));
    want(&mut doors, &Wanted::from([(taken.local_addr().expect("an address"), "bad")])).await;
    want(&mut doors, &Wanted::new()).await;
    assert_eq!((doors.failed().count(), doors.retry_at), (0, None));
}

#[tokio::test]
async fn every_address_is_for_both_families_unless_they_are_wanted_apart() {
    let port = free().await.port();
    let (v4, v6) = (SocketAddr::from((HERE, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port)));
    let (any_v4, any_v6) =
        (SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    let mut doors = doors(Duration::from_secs(60));
    want(&mut doors, &Wanted::from([(any_v6, "both")])).await;
    assert_eq!(doors.failed().count(), 0);
    assert_eq!(said(v4).await.as_deref(), Some("both"));
    let has_v6 = said(v6).await.is_some();
    want(&mut doors, &Wanted::from([(any_v4, "v4")])).await;
    assert_eq!((said(v4).await.as_deref(), said(v6).await), (Some("v4"), None));
    if has_v6 {
        want(&mut doors, &Wanted::from([(any_v4, "v4"), (any_v6, "v6")])).await;
        // The second socket was opened while the first served both families: the first is closed and opened again for
        // its family.
        assert_eq!((said(v4).await.as_deref(), said(v6).await.as_deref()), (Some("v4"), Some("v6")));
    }
}

#[tokio::test]
async fn there_are_no_more_than_there_may_be() {
    let mut doors = doors(Duration::from_millis(1));
    let mut wanted = Wanted::new();
    for _ in 0..5 {
        wanted.insert(free().await, "door");
    }
    want(&mut doors, &wanted).await;
    let failed: Vec<String> = doors.failed().map(|(_, _, error)| error.to_string()).collect();
    assert_eq!(failed, ["no more than 3 sockets may listen; raise LimitNOFILE of nodelb.service"; 2]);
    let closed: Vec<SocketAddr> = wanted.keys().take(2).copied().collect();
    wanted.retain(|at, _| !closed.contains(at));
    doors.retry_is_due().await;
    want(&mut doors, &wanted).await;
    assert_eq!(doors.failed().count(), 0);
}
