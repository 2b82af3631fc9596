use std::sync::Arc;

use nodelb_core::model::service::Source;
use nodelb_core::source_report::SourceState;
use nodelb_core::state::entries::ServiceId;
use nodelb_core::state::kernel_check::Content;
use nodelb_kube::apiserver::endpoints::pool::PoolReport;
use nodelb_report::output::table::Style;
use nodelb_report::rows::Answer;
use nodelb_report::time::Time;
use nodelb_sources::files::FileReports;

use super::*;
use crate::admin::fixture::{always, kubernetes, unsynced};
use crate::datapath::fake::FakeDatapath;
use crate::kubernetes::{AskLive, KubernetesOutputs};

fn datapath(content: Result<Content, String>) -> FakeDatapath {
    FakeDatapath { content: Box::new(move || content.clone()), ..FakeDatapath::default() }
}

fn state(content: Result<Content, String>) -> AdminState {
    AdminState { datapath: Arc::new(datapath(content)), ..unsynced() }
}

fn text(state: &AdminState, filter: &Filter) -> String {
    let query = Query { filter: filter.clone(), ..Query::default() };
    diff(state, &query, Clocks::default()).unwrap().text(Time::default(), &Style::default())
}

#[test]
fn agreement_is_one_line() {
    let state = state(Ok(Content::default()));
    assert_eq!(
        text(&state, &Filter::default()),
        "source, memory and kernel agree: 0 services, 0 frontends; compared just now\n"
    );
    let narrow = Filter { service: Some("shop/web".parse().unwrap()), ..Filter::default() };
    assert!(text(&state, &narrow).starts_with("source, memory and kernel agree about what was asked for: "));
}

#[test]
fn maps_sources_and_hooks_each_have_their_rows() {
    let mut content = Content::default();
    content.state.services.insert(ServiceId(7), Arc::default());
    let report = SourceReport {
        source: Source::Files,
        path: "/etc/nodelb/services.d/a.toml".into(),
        state: SourceState::LastGood,
        kind: None,
        last_received: None,
        services: 1,
        slices: 1,
        content: None,
        notices: Vec::new(),
        problems: vec!["line 3: no".into(), "line 4: no".into()],
        since: 0,
    };
    let link_faults = vec!["hook connect4: it is gone".into()];
    let datapath = Arc::new(FakeDatapath { link_faults, ..datapath(Ok(content)) });
    let state = AdminState { datapath, files: always(FileReports::from_iter([report])), ..unsynced() };
    let shown = text(&state, &Filter::default());
    let blocks: Vec<&str> = shown.split("\n\n").collect();
    assert_eq!(blocks.len(), 3, "{shown}");
    assert!(
        blocks[0].contains("files /etc/nodelb/services.d/a.toml") && blocks[0].contains("(and 1 more: see /sources)")
    );
    assert!(blocks[1].contains("service id 7") && blocks[1].contains("another process added"), "{shown}");
    assert!(blocks[2].contains("hook connect4: it is gone"), "{shown}");
    let narrow = Filter { service: Some("shop/web".parse().unwrap()), ..Filter::default() };
    assert!(text(&state, &narrow).starts_with("source, memory and kernel agree"));
}

#[test]
fn no_difference_is_reported_while_a_round_runs() {
    let mut content = Content::default();
    content.state.services.insert(ServiceId(7), Arc::default());
    let mut state = state(Ok(content.clone()));
    let rounds = state.owner.rounds.clone();
    rounds.begin();
    let shown = text(&state, &Filter::default());
    assert!(shown.contains("changes are in progress") && !shown.contains("another process"), "{shown}");
    rounds.end();
    assert!(text(&state, &Filter::default()).contains("another process added"));
    // A round that ends before the snapshot is read.
    let busy = move || {
        rounds.begin();
        rounds.end();
        Ok(content.clone())
    };
    state.datapath = Arc::new(FakeDatapath { content: Box::new(busy), ..FakeDatapath::default() });
    let shown = text(&state, &Filter::default());
    assert!(shown.contains("changes are in progress") && !shown.contains("another process"), "{shown}");
}

#[test]
fn live_is_refused_without_kubernetes_and_uses_the_service_with_the_address() {
    let query = Query { live: true, ..Query::default() };
    let mut state = state(Ok(Content::default()));
    let problem = diff(&state, &query, Clocks::default()).unwrap_err();
    assert_eq!(problem.status, StatusCode::CONFLICT);
    assert!(problem.message.contains("needs Kubernetes"), "{}", problem.message);
    let live: AskLive = Arc::new(|service| {
        assert_eq!(service, None);
        Ok(vec![unattached("an apiserver says so".into())])
    });
    state.kubernetes = Some(KubernetesOutputs { live, ..kubernetes(PoolReport::default()) });
    assert!(
        diff(&state, &query, Clocks::default())
            .unwrap()
            .differences
            .iter()
            .any(|row| row.kernel.as_deref() == Some("an apiserver says so"))
    );
}

/// It was "1 difference", as a change that nodelb lacks is.
#[test]
fn a_comparison_that_could_not_be_made_is_no_difference() {
    let query = Query { live: true, ..Query::default() };
    for (is_too_early, status) in [(true, StatusCode::TOO_MANY_REQUESTS), (false, StatusCode::SERVICE_UNAVAILABLE)] {
        let live: AskLive = Arc::new(move |_| Err(NotCompared { text: "for a reason".into(), is_too_early }));
        let kubernetes = Some(KubernetesOutputs { live, ..kubernetes(PoolReport::default()) });
        let state = AdminState { kubernetes, ..state(Ok(Content::default())) };
        let problem = diff(&state, &query, Clocks::default()).unwrap_err();
        assert_eq!(problem.status, status);
        assert!(problem.message.starts_with("not compared with an API server: for a reason; "), "{}", problem.message);
    }
}

#[test]
fn maps_that_cannot_be_read_are_a_problem_with_its_reason() {
    let problem = diff(&state(Err("map frontends: no".into())), &Query::default(), Clocks::default()).unwrap_err();
    assert_eq!(problem.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(problem.message.contains("map frontends: no"), "{}", problem.message);
}
