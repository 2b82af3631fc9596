use nodelb_core::model::time::Time;
use nodelb_report::problems::{Reason, Reloads};

use crate::admin::Now;
use crate::admin::fixture::{always, unsynced};
use crate::admin::state::AdminState;

fn reasons(state: &AdminState) -> Vec<Reason> {
    state.problems(Now::default()).iter().map(|problem| problem.reason).collect()
}

#[test]
fn maps_in_memory_and_a_pending_restart_are_problems() {
    assert_eq!(reasons(&unsynced()), [Reason::NotSynced, Reason::NotTranslated]);
    let reloads = Reloads::default().applied(Time(1), vec!["datapath.max-slots".to_owned()]);
    let state = AdminState { reloads: always(reloads), ..unsynced() };
    assert!(reasons(&state).contains(&Reason::RestartPending));
}
