use super::*;

/// An IPv4 packet with these addresses and ports, and a TCP header with this flag.
fn tcp(source: [u8; 4], target: [u8; 4], ports: [u16; 2], flags: u8) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
    bytes.extend(source);
    bytes.extend(target);
    bytes.extend(ports.map(u16::to_be_bytes).concat());
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn with_ethernet(ip: &[u8]) -> Vec<u8> {
    [&[2; 12][..], &[8, 0], ip].concat()
}

fn translated() -> PacketRow {
    let before = with_ethernet(&tcp([203, 0, 113, 3], [198, 51, 100, 80], [40_000, 80], 2));
    let after = tcp([203, 0, 113, 2], [203, 0, 113, 4], [10_000, 8080], 2);
    PacketRow {
        time: 1_795_000_000_000_123,
        device: "uplink".into(),
        direction: "in".into(),
        verdict: "redirected".into(),
        reason: None,
        service: Some("shop/front:http/TCP/IPv4".into()),
        link: "ethernet".into(),
        length: 54,
        bytes: hex(&before),
        next_device: Some("tunl0".into()),
        next_link: Some("ip".into()),
        next_length: Some(40),
        next_bytes: Some(hex(&after)),
        lost: 0,
        lost_at_most: false,
    }
}

#[test]
fn a_line_has_the_packet_and_what_became_of_it() {
    let expected = "2026-11-18T11:06:40.000123Z  uplink in  TCP 203.0.113.3:40000 > 198.51.100.80:80 [S]  redirected to \
                    TCP 203.0.113.2:10000 > 203.0.113.4:8080 [S] by tunl0  shop/front:http/TCP/IPv4\n";
    assert_eq!(to_text(&translated()), expected);
    let refused = PacketRow { verdict: "rst".into(), reason: Some("no-backend".into()), lost: 7, ..translated() };
    let text = to_text(&refused);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("# 7 packets were not reported: too many at a time"));
    assert!(lines.next().unwrap().ends_with("[S]  rst (no-backend) by tunl0  shop/front:http/TCP/IPv4"), "{text}");
}

#[test]
fn bytes_that_are_no_ip_packet_are_counted() {
    assert_eq!(headers("45000028", "ip"), "4 bytes");
    assert_eq!(headers("", "ethernet"), "0 bytes");
    assert_eq!(headers(&hex(&[0; 60]), "ip"), "60 bytes");
    assert_eq!(unhex("0aZZ0b"), [10]);
    let mut later = tcp([192, 0, 2, 1], [192, 0, 2, 2], [1, 2], 2);
    later[7] = 8;
    assert_eq!(headers(&hex(&later), "ip"), "TCP 192.0.2.1 > 192.0.2.2");
    let mut v6 = vec![0; 60];
    (v6[0], v6[6]) = (0x60, 17);
    (v6[23], v6[39], v6[41], v6[43]) = (1, 2, 9, 53);
    assert_eq!(headers(&hex(&v6), "ip"), "UDP [::1]:9 > [::2]:53");
}

/// A block of a pcapng file: its type and content.
fn blocks(mut file: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut blocks = Vec::new();
    while !file.is_empty() {
        let number = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap());
        let length = usize::try_from(number(4)).unwrap();
        assert_eq!((length % 4, number(length - 4)), (0, number(4)), "the length at both ends");
        blocks.push((number(0), file[8..length - 4].to_vec()));
        file = &file[length..];
    }
    blocks
}

/// The options at the end of a block, by their numbers.
fn options(mut bytes: &[u8]) -> Vec<(u16, String)> {
    let mut options = Vec::new();
    loop {
        let number = |at: usize| u16::from_ne_bytes(bytes[at..at + 2].try_into().unwrap());
        let (code, length) = (number(0), usize::from(number(2)));
        if code == 0 {
            assert_eq!(bytes.len(), 4, "nothing follows the end");
            return options;
        }
        options.push((code, String::from_utf8(bytes[4..4 + length].to_vec()).unwrap()));
        bytes = &bytes[4 + length.next_multiple_of(4)..];
    }
}

#[test]
fn a_capture_has_each_device_once_and_the_packet_twice() {
    let mut file = Vec::new();
    let mut capture = PcapWriter::new(&mut file).unwrap();
    let row = translated();
    capture_row(&mut capture, &row).unwrap();
    let dropped = PacketRow { verdict: "dropped".into(), next_bytes: None, next_length: None, ..translated() };
    capture_row(&mut capture, &dropped).unwrap();
    let blocks = blocks(&file);
    let kinds: Vec<u32> = blocks.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [0x0a0d_0d0a, 1, 6, 1, 6, 6]);
    assert_eq!(blocks[0].1[..4], 0x1a2b_3c4d_u32.to_ne_bytes());
    for (block, link, name) in [(&blocks[1], 1_u16, "uplink"), (&blocks[3], 101, "tunl0")] {
        assert_eq!(block.1[..2], link.to_ne_bytes());
        assert_eq!(options(&block.1[8..]), [(2, name.to_owned())]);
    }
    let word = |block: &[u8], index: usize| u32::from_ne_bytes(block[4 * index..4 * index + 4].try_into().unwrap());
    let before = &blocks[2].1;
    let time = u64::from(word(before, 1)) << 32 | u64::from(word(before, 2));
    assert_eq!((word(before, 0), time, word(before, 3), word(before, 4)), (0, row.time, 54, 54));
    assert_eq!(before[20..74], unhex(&row.bytes));
    assert_eq!(options(&before[76..]), [(1, comment(&row))]);
    let after = &blocks[4].1;
    assert_eq!((word(after, 0), word(after, 3), &after[20..24]), (1, 40, &[0x45, 0, 0, 40][..]));
    assert_eq!(word(&blocks[5].1, 0), 0, "the dropped packet, at the first device");
}

#[test]
fn lines_of_the_stream_become_lines_and_packets() {
    let options = WatchOptions::default();
    let mut out = Vec::new();
    let mut sinks = Sinks::new(&options, &mut out).unwrap();
    sinks.take(br#"{"id":0,"event":"table","data":{"packets":[]}}"#).unwrap();
    let row = r#"{"time":1,"device":"up","direction":"in","verdict":"dropped","reason":"no-route","service":null,
        "link":"ip","length":4,"bytes":"45000028","next_device":null,"next_link":null,"next_length":null,
        "next_bytes":null,"lost":0}"#;
    sinks.take(format!(r#"{{"id":1,"event":"added","data":{row}}}"#).as_bytes()).unwrap();
    assert!(sinks.take(b"nonsense").is_err());
    drop(sinks);
    assert_eq!(String::from_utf8(out).unwrap(), "1970-01-01T00:00:00.000001Z  up in  4 bytes  dropped (no-route)\n");
}
