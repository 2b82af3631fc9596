use super::*;
use crate::source::kube::time::seconds;

fn at(seconds: u64, nanos: u32) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos)
}

#[test]
fn times_are_written_as_go_writes_them() {
    let cases = [
        (0, 0, "1970-01-01T00:00:00Z", "Thu, 01 Jan 1970 00:00:00 GMT"),
        (951_782_399, 120_000_000, "2000-02-28T23:59:59.12Z", "Mon, 28 Feb 2000 23:59:59 GMT"),
        (951_782_400, 1, "2000-02-29T00:00:00.000000001Z", "Tue, 29 Feb 2000 00:00:00 GMT"),
        (1_795_186_623, 999_999_999, "2026-11-20T14:57:03.999999999Z", "Fri, 20 Nov 2026 14:57:03 GMT"),
        (4_107_542_399, 500_000_000, "2100-02-28T23:59:59.5Z", "Sun, 28 Feb 2100 23:59:59 GMT"),
        (4_107_542_400, 0, "2100-03-01T00:00:00Z", "Mon, 01 Mar 2100 00:00:00 GMT"),
    ];
    for (seconds, nanos, json, http) in cases {
        assert_eq!((&*rfc3339(at(seconds, nanos)), &*http_date(at(seconds, nanos))), (json, http));
    }
}

#[test]
fn what_is_written_is_read_as_the_same_second() {
    for day in 0..200_000_u64 {
        let time = day * DAY + day % DAY;
        assert_eq!(seconds(&rfc3339(at(time, 0))), Some(time));
    }
}

#[test]
fn a_clock_before_1970_is_no_reason_to_fail() {
    assert_eq!(rfc3339(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00Z");
}
