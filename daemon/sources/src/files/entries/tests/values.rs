use super::*;

type Timeout = Limited<1_000, 31_536_000_000, 1_000>;

fn read<T: for<'de> Deserialize<'de>>(value: &str) -> Option<T> {
    T::deserialize(toml::de::ValueDeserializer::parse(value).unwrap()).ok()
}

#[test]
fn durations() {
    for (text, seconds) in [("3h", 10_800), ("1h30m", 5_400), ("90s", 90), ("1d2h3m4s", 93_784), ("365d", 31_536_000)] {
        assert_eq!(read::<Timeout>(&format!("\"{text}\"")).map(|timeout| timeout.0.as_secs()), Some(seconds), "{text}");
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
        assert!(read::<Timeout>(&format!("\"{text}\"")).is_none(), "{text}");
    }
    assert_eq!(read::<Timeout>("2").map(|timeout| timeout.0), Some(Duration::from_secs(2)));
    assert!(read::<Timeout>("-2").is_none() && read::<Timeout>("0").is_none() && read::<Timeout>("2.0").is_none());
}

#[test]
fn backends_have_no_protocol_and_a_zone_id_is_refused() {
    assert!(backend_address("192.0.2.1:80").is_ok());
    for text in
        ["192.0.2.1:80/TCP", "[fe80::1%2]:80", "192.0.2.01:80", "localhost:80", "255.255.255.255:1", "[ff02::1]:1"]
    {
        assert!(backend_address(text).is_err(), "{text}");
    }
}
