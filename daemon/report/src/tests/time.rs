use nodelb_core::model::moment::Moment;

use super::{Clocks, Time, utc_millis};

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

#[test]
fn milliseconds_have_three_digits() {
    assert_eq!(utc_millis(951_782_400_000).as_deref(), Some("2000-02-29T00:00:00.000Z"));
    assert_eq!(utc_millis(951_782_400_120).as_deref(), Some("2000-02-29T00:00:00.120Z"));
    assert_eq!(utc_millis(u64::MAX), None);
}
