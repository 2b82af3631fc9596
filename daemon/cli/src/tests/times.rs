use super::*;

fn zone() -> TimeZone {
    TimeZone::posix("CET-1").unwrap()
}

fn at(text: &str) -> Time {
    let at: Timestamp = text.parse().unwrap();
    Time(at.as_millisecond().try_into().unwrap())
}

fn range(since: &str, until: &str, now: &str) -> (String, String) {
    let parse = |text: &str| Some(text).filter(|text| !text.is_empty()).map(|text| when(text).unwrap());
    let Range { since, until } = Range::new((parse(since), parse(until)), at(now), &zone());
    (since.to_string(), until.to_string())
}

/// Once, only ages: "what changed at 03:12" was arithmetic.
#[test]
fn a_time_of_day_is_the_last_one_and_the_end_follows_the_beginning() {
    let now = "2026-11-20T10:00:00Z";
    let day = |from: &str, to: &str| (format!("2026-11-{from}.000Z"), format!("2026-11-{to}.000Z"));
    assert_eq!(range("03:10", "03:15", now), day("20T02:10:00", "20T02:15:00"));
    assert_eq!(range("23:50", "00:10:30", now), day("19T22:50:00", "19T23:10:30"));
    assert_eq!(range("10:50", "11:30", now), day("20T09:50:00", "20T10:30:00"));
    assert_eq!(range("2h", "2026-11-20 10:00", now), day("20T08:00:00", "20T09:00:00"));
    assert_eq!(range("2026-11-19T03:10:00+01:00", "2026-11-19T03:10:00Z", now), day("19T02:10:00", "19T03:10:00"));
    assert_eq!(range("", "03:15", now), ("1970-01-01T00:00:00.000Z".into(), "2026-11-20T02:15:00.000Z".into()));
}

#[test]
fn what_is_no_time_is_refused() {
    for text in ["", "soon", "25:00", "10", "2026-11-20", "03:10 Uhr"] {
        assert!(when(text).unwrap_err().contains(text), "{text}");
    }
}
