use axum::http::StatusCode;
use nodelb_report::time::Time;
use std::io;
use std::sync::Arc;

use axum::http::Uri;
use nodelb_core::model::moment::Moment;
use nodelb_core::state::entries::ServiceId;
use nodelb_datapath::packets::PacketVerdict;

use super::super::fixture::unsynced;
use super::super::query::SERVICE;
use super::*;
use crate::devices::{DeviceOutputs, Drops as Counted};

fn count(id: Option<u32>, reason: &'static str, verdict: PacketVerdict, packets: u64) -> DropCount {
    DropCount { service: id.map(ServiceId), reason, verdict, packets, first: 60, last: 3 }
}

/// What the API answers to this query about these counts.
fn asked(query: &str, drops: impl Fn() -> io::Result<Counted> + Send + Sync + 'static) -> Result<Drops, Problem> {
    let packets = DeviceOutputs { drops: Arc::new(drops), ..DeviceOutputs::default() };
    let state = AdminState { packets: Some(packets), ..unsynced() };
    let uri: Uri = format!("/drops?{query}").parse().unwrap();
    super::drops(
        &state,
        &Query::parse(&uri, &[&SERVICE]).unwrap(),
        Clocks { moment: Moment(0), time: Time::from_seconds(1_764_000_000) },
    )
}

fn some() -> Counted {
    let counts = vec![
        count(None, "short", PacketVerdict::Passed, 2),
        count(Some(7), "no-backend", PacketVerdict::Rst, 40),
        count(Some(7), "no-backend", PacketVerdict::Icmp, 1),
    ];
    Counted { counts, packets: 50, age: 120 }
}

#[test]
fn rows_begin_with_the_most_packets_and_describe_the_reason() {
    let answer = serde_json::to_value(asked("", || Ok(some())).ok().unwrap()).unwrap();
    let rows = answer["drops"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["packets"].as_u64().unwrap()).collect::<Vec<_>>(), [40, 2, 1]);
    assert_eq!((&rows[0]["reason"], &rows[0]["verdict"]), (&"no-backend".into(), &"rst".into()));
    assert_eq!((&rows[0]["service"], &rows[1]["service"]), (&"(deleted service 7)".into(), &serde_json::Value::Null));
    assert_eq!(
        (&rows[0]["first"], &rows[0]["last"]),
        (&"2025-11-24T15:59:00.000Z".into(), &"2025-11-24T15:59:57.000Z".into())
    );
    assert_eq!(rows[0]["description"], "the service has no usable backend: see nodelb backends");
    let counted = &answer["counted"];
    assert_eq!(
        (&counted["since"], &counted["packets"], &counted["not_listed"]),
        (&"2025-11-24T15:58:00.000Z".into(), &50.into(), &7.into())
    );
}

#[test]
fn a_service_without_drops_has_no_row() {
    let answer = serde_json::to_value(asked("service=shop/web", || Ok(some())).ok().unwrap()).unwrap();
    assert_eq!(answer["drops"].as_array().unwrap().len(), 0);
    assert_eq!(answer["counted"]["not_listed"], 7, "the filter does not change what the list lacks");
    assert_eq!(answer["counted"]["packets"], 0, "those of other services are not its own");
}

#[test]
fn an_error_of_the_kernel_is_reported() {
    let problem = asked("", || Err(io::Error::from(io::ErrorKind::PermissionDenied))).err().unwrap();
    assert_eq!(problem.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(problem.message.contains("permission denied"), "{}", problem.message);
}
