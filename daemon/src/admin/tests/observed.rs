use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::Source;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{FrontendEntry, OutsideEntry, ServiceEntry, ServiceId};
use nodelb_core::state::owner::OwnerTag;
use nodelb_report::problems::{Reason, Reloads};
use nodelb_report::time::{Clocks, Time};

use crate::admin::fixture::{always, owner, unsynced};
use crate::admin::maps::usage;
use crate::admin::state::AdminState;
use crate::config::Config;
use crate::devices::DeviceOutputs;
use crate::devices::mode::{Activity, Decision};
use crate::devices::report::DevicesReport;

fn reasons(state: &AdminState) -> Vec<Reason> {
    state.problems(Clocks::default()).iter().map(|problem| problem.reason).collect()
}

#[test]
fn a_map_is_nearly_full_since_it_was_first_seen_so() {
    let state = unsynced();
    let address = |last: u8| format!("192.0.2.{last}:80/TCP").parse().unwrap();
    let entry = FrontendEntry { service: ServiceId(1), inside_local: false, outside_local: false };
    let with = |count: u8| {
        let mut snapshot = Snapshot::default();
        snapshot.realised.frontends = (0..count).map(|last| (address(last), entry)).collect();
        snapshot
    };
    let since = |count, unix| {
        let tables = state.tables(
            usage(&with(count).realised, &state, Moment(0)),
            Clocks { moment: Moment(0), time: Time::from_seconds(unix) },
        );
        tables.iter().find(|table| table.name == "frontends").unwrap().full_since
    };
    let limit = u8::try_from(state.datapath.limits().frontends).unwrap();
    assert_eq!([since(limit, 1), since(limit, 5)], [Some(Time(1_000)); 2]);
    assert_eq!([since(0, 6), since(limit, 7)], [None, Some(Time(7_000))]);
}

#[test]
fn maps_in_memory_and_a_pending_restart_are_problems() {
    assert_eq!(reasons(&unsynced()), [Reason::NotSynced, Reason::NotTranslated]);
    let reloads = Reloads::default().applied(Time(1), vec!["datapath.max-slots".to_owned()]);
    let state = AdminState { reloads: always(reloads), ..unsynced() };
    assert!(reasons(&state).contains(&Reason::RestartPending));
}

/// `nodelb status` found no problem, as the configuration turns the translation on.
#[test]
fn no_device_with_the_programs_is_a_problem_in_each_mode() {
    let found = |mode: &str, is_needed| {
        let config = Config::parse(&format!("[packets]\nmode = {mode:?}\n")).unwrap();
        let decision = Some(Decision { activity: Activity::Off, reason: "no device".into() });
        let report = DevicesReport { decision, is_needed, ..DevicesReport::default() };
        let packets = Some(DeviceOutputs { devices: always(report), ..DeviceOutputs::default() });
        let state = AdminState { packets, config: always(config), ..unsynced() };
        reasons(&state).contains(&Reason::OutsideUntranslated)
    };
    assert!(found("on", true) && found("auto", true));
    assert!(!found("on", false) && !found("off", true));
}

/// Clients of services of Kubernetes got no answer next to a table that a proxy had left behind, while those of files were
/// served: status found no problem.
#[test]
fn services_of_kubernetes_that_are_left_to_another_proxy_are_a_problem_next_to_those_of_files() {
    let reasons = |source: Source| {
        let mut snapshot = Snapshot::default();
        let tag = OwnerTag { source, service: 1, port: 1 };
        let entry = ServiceEntry { tag: Some(tag), ..ServiceEntry::default() };
        snapshot.realised.services.insert(ServiceId(1), entry.into());
        let outside = OutsideEntry { service: ServiceId(1), local: false, has_ranges: false };
        snapshot.realised.outside.insert("198.51.100.1:80/TCP".parse().unwrap(), outside);
        let decision = Some(Decision { activity: Activity::Files, reason: "another proxy".into() });
        let report = DevicesReport { decision, is_needed: true, has_other_proxy: true, ..DevicesReport::default() };
        let packets = Some(DeviceOutputs { devices: always(report), ..DeviceOutputs::default() });
        reasons(&AdminState { packets, owner: owner(always(snapshot)), ..unsynced() })
    };
    assert!(reasons(Source::Kubernetes).contains(&Reason::OutsideUntranslated));
    assert!(!reasons(Source::Files).contains(&Reason::OutsideUntranslated));
}
