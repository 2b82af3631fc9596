use std::sync::Arc;

use nodelb_core::datapath::Count;
use nodelb_report::output::table::Style;
use nodelb_report::rows::Answer;

use super::*;
use crate::admin::fixture::{always, owner, unsynced};
use crate::connections::Connections;
use crate::datapath::fake::FakeDatapath;
use crate::world::World;

fn state(connections: Option<Connections>) -> AdminState {
    let world = World::new(4);
    let datapath = Arc::new(FakeDatapath { connections, ..FakeDatapath::default() });
    AdminState { owner: owner(always(world.engine.snapshot(world.now))), datapath, ..unsynced() }
}

#[test]
fn ports_with_connections_are_listed() {
    let read = |id: nodelb_core::state::entries::ServiceId| match id.0 % 2 {
        0 => Count { translated: 7, refused: 1 },
        _ => Count::default(),
    };
    let state = state(Some(Connections { read: Arc::new(read), ledger: Arc::default() }));
    let answer = counters(&state, &Filter::default());
    assert!(answer.is_counting && answer.counters.len() == 2, "{answer:?}");
    let row = &answer.counters[0];
    assert_eq!((row.port.as_str(), row.inside, row.outside, row.refused), ("http/TCP/IPv4", 7, None, 1));
    let only = Filter::for_service(&answer.counters[0].service.parse().unwrap());
    assert_eq!(counters(&state, &only).counters, answer.counters[..1]);
}

#[test]
fn a_datapath_that_counts_nothing_says_so() {
    let answer = counters(&state(None), &Filter::default());
    let text = answer.text(Default::default(), &Style::default());
    assert!(text.starts_with("Connections are not counted"), "{text}");
}
