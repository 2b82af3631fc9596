use super::{Clocks, Time};
use crate::model::moment::Moment;

#[test]
fn a_time_survives_json() {
    let time = Time(1_764_000_000_123);
    let json = serde_json::to_string(&time).expect("JSON");
    assert_eq!(json, "\"2025-11-24T16:00:00.123Z\"");
    assert_eq!(serde_json::from_str::<Time>(&json).expect("a time"), time);
    assert!(serde_json::from_str::<Time>("\"yesterday\"").is_err());
    assert!(serde_json::from_str::<Time>("\"1969-12-31T23:59:59Z\"").is_err());
}

#[test]
fn moments_become_times_of_day() {
    let clocks = Clocks { moment: Moment(60_000), time: Time(1_000_000) };
    assert_eq!(clocks.time_of(Moment(59_000)), Time(999_000));
    assert_eq!(clocks.time_of(Moment(61_000)), Time(1_000_000), "a moment in the future counts as now");
    assert_eq!(Time(999_000).age(clocks.time), 1_000);
}
