use super::*;

#[test]
fn flags_say_how_a_connection_is_forwarded() {
    let [source, target]: [L4Addr; 2] = ["203.0.113.3:40000", "198.51.100.1:80"].map(|text| text.parse().unwrap());
    let key = packet_key((source, target), false);
    let forward = |flags: &[bits]| {
        let flags = flags.iter().fold(0, |all, bit| all | bit.0);
        let value = bytes_of!(types::connection { flags: flags.to_ne_bytes() });
        let entry = parse_connection(&key, &value).unwrap();
        assert_eq!((entry.from, entry.is_reverse), ((source, target), false));
        entry.forward
    };
    let (forwarded, tunnelled) = (bits::CONNECTION_FORWARDED, bits::CONNECTION_TUNNELLED);
    let redirected = bits::CONNECTION_REDIRECTED;
    assert_eq!(forward(&[redirected]), Forward::Translate);
    assert_eq!(forward(&[redirected, forwarded]), Forward::Direct);
    assert_eq!(forward(&[redirected, forwarded, tunnelled]), Forward::Tunnel);
}
