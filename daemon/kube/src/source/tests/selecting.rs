use nodelb_core::model::service::ServiceName;

use super::*;
use crate::api::decode::{Key, Kind, ListWatchEvent, Version};
use crate::source::store::InMaps;

/// A store that has listed a namespace without services, and remembers one of another namespace.
fn held_store() -> (Store, Selecting) {
    let selection = Selection { namespaces: vec!["shopp".into()], ..Selection::default() };
    let scopes = selection.scopes();
    let mut store = Store::new(&scopes, InMaps::default());
    let name = ServiceName::new("shop", "web");
    store.remember(Kind::Service, &Key::new("shop", "web"), &name);
    store.reselect("kubernetes.namespaces = shopp");
    for number in 0..scopes.len() {
        _ = store.apply(number, ListWatchEvent::ListStart { is_rewound: false }, &mut Vec::new());
        _ = store.apply(number, ListWatchEvent::ListDone(Version(1)), &mut Vec::new());
    }
    let held = store.held().map(|held| (Arc::clone(held), Instant::now()));
    (store, Selecting { selection, held })
}

/// A reload may be about something else.
#[tokio::test(start_paused = true)]
async fn a_reload_accepts_only_what_is_known_for_a_while() {
    let (mut store, selecting) = held_store();
    let mut accept = |by| {
        let mut changes = Vec::new();
        let (_, ended) = selecting.accept(Accept { by, reply: oneshot::channel().0 }, &mut store, &mut changes);
        (ended.is_some(), changes.len())
    };
    assert_eq!(accept(By::Reload), (false, 0));
    tokio::time::advance(RELOAD_ACCEPTS_AFTER - Duration::from_secs(1)).await;
    assert_eq!(accept(By::Reload), (false, 0));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(accept(By::Reload), (true, 2), "a removal, and that everything is read");
}

#[tokio::test]
async fn the_command_accepts_at_once() {
    let (mut store, selecting) = held_store();
    let accept = Accept { by: By::Command, reply: oneshot::channel().0 };
    let (_, ended) = selecting.accept(accept, &mut store, &mut Vec::new());
    assert_eq!(ended.as_deref(), Some("kubernetes.namespaces = shopp selects 0 of 1 known services"));
}
