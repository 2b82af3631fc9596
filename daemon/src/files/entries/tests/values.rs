use super::*;

#[test]
fn durations() {
    for (text, seconds) in [("3h", 10_800), ("1h30m", 5_400), ("90s", 90), ("1d2h3m4s", 93_784), ("365d", 31_536_000)] {
        assert_eq!(text.parse::<Timeout>().ok().map(|timeout| timeout.0), Some(seconds), "{text}");
    }
    for text in [
        "",
        "0s",
        "h",
        "3",
        "3 h",
        "30m1h",
        "1h1h",
        "366d",
        "99999999999999999999d",
        "1é",
        "-1s",
        "1.5h",
        "1500ms",
        "1ms",
    ] {
        assert!(text.parse::<Timeout>().is_err(), "{text}");
    }
    assert_eq!("2s".parse::<Timeout>().ok().map(|timeout| timeout.0), Some(2));
    assert_eq!(duration("1m1s1ms"), Some(Duration::from_millis(61_001)));
    assert_eq!(duration("1ms1s"), None);
}

#[test]
fn backends_have_no_protocol_and_a_zone_id_is_refused() {
    assert!("192.0.2.1:80".parse::<BackendAddress>().is_ok());
    for text in
        ["192.0.2.1:80/TCP", "[fe80::1%2]:80", "192.0.2.01:80", "localhost:80", "255.255.255.255:1", "[ff02::1]:1"]
    {
        assert!(text.parse::<BackendAddress>().is_err(), "{text}");
    }
}
