//! The parser of the packet programs, `parse()` of `bpf/packet.h`, compiled for this machine with the address and
//! undefined behaviour sanitizers, against `nodelb_model::headers`: the packets of `packet_programs/fixtures/` with
//! arbitrary damage. Needs no root. `SOCKET_SEED=n` selects other damage; `FUZZ_SECONDS=n` runs for this time.

#![expect(clippy::print_stdout, reason = "a test that runs for a given time prints what it tried")]

#[cfg(test)]
#[path = "packet_fixtures/case.rs"]
#[expect(dead_code, reason = "only the packets of cases are read here")]
mod case;
#[cfg(test)]
#[path = "packet_fixtures/frame.rs"]
mod frame;
#[cfg(test)]
#[path = "packet_parser/program.rs"]
mod program;
#[cfg(test)]
#[path = "packet_fixtures/world.rs"]
#[expect(dead_code, reason = "only the packets of cases are read here")]
mod world;

use std::path::Path;
use std::time::{Duration, Instant};

use nodelb_core::model::addr::Family;
use nodelb_core::state::ring::scramble;
use nodelb_model::headers::{Content, Headers, Parsed, parse};

use self::program::{Program, Read, Request};

/// Packets of a short run.
const CASES: usize = 30_000;

/// Bytes that mean something in some header: versions with lengths, protocols, extension headers, ICMP types, flags.
const MEANINGFUL: [u8; 24] = [0, 1, 2, 3, 4, 6, 8, 11, 12, 17, 20, 32, 40, 43, 44, 51, 58, 60, 64, 69, 70, 79, 96, 255];

/// What both must agree on. A packet that is not read is passed on, whatever is wrong with it.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    Packet(Box<Read>),
}

fn by_model(frame: &[u8], is_gso: bool) -> Seen {
    let Parsed::Packet(headers) = parse(frame, 14, is_gso) else { return Seen::Nothing };
    let mut read = Read {
        parsed: match headers.content {
            Content::Transport(..) | Content::LaterFragment(_) => 2,
            Content::IcmpError => 3,
            Content::Tunnel(_) => 4,
        },
        transport: headers.transport,
        end: headers.end,
        part: headers.fragment.map_or(0, |fragment| if fragment.is_first { 1 } else { 2 }),
        fragment_id: headers.fragment.map_or(0, |fragment| fragment.id),
        source: headers.source.octets(),
        target: headers.target.octets(),
        ttl: headers.ttl,
        is_v6: headers.family == Family::Ipv6,
        ..Read::default()
    };
    match headers.content {
        Content::Transport(protocol, ports) => {
            read.protocol = protocol.number();
            (read.source_port, read.target_port) = (ports.source, ports.target);
            (read.tcp_flags, read.sequence, read.acknowledgment) =
                (ports.tcp_flags, ports.sequence, ports.acknowledgment);
        }
        Content::LaterFragment(protocol) => read.protocol = protocol.number(),
        Content::IcmpError | Content::Tunnel(_) => {}
    }
    Seen::Packet(Box::new(read))
}

fn by_program(mut read: Read, headers: Option<&Headers>) -> Seen {
    if !matches!(read.parsed, 2..=4) {
        return Seen::Nothing;
    }
    // Only fragments need an identification, and only packets of connections a protocol.
    if read.part == 0 {
        read.fragment_id = 0;
    } else if !read.is_v6 {
        read.fragment_id >>= 16;
    }
    if headers.is_some_and(|headers| matches!(headers.content, Content::IcmpError | Content::Tunnel(_))) {
        read.protocol = 0;
    }
    Seen::Packet(Box::new(read))
}

/// The frames of all cases.
fn frames() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/packet_programs/fixtures");
    let worlds = std::fs::read_to_string(folder.join("worlds")).expect("a file");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let texts = files.iter().filter(|path| path.extension().is_some_and(|kind| kind == "txt"));
    let mut frames = Vec::new();
    for text in texts.map(|path| std::fs::read_to_string(path).expect("a file")) {
        for case in case::cases(&format!("{worlds}\n{text}")) {
            let mut node = world::World::new();
            case.world.iter().for_each(|line| node.apply(line));
            let steps = case.steps.iter().filter(|step| step.starts_with("in ") || step.starts_with("out "));
            let packets = steps.map(|step| case::packet(&node, step)).filter(|packet| packet.l2_length == 14);
            frames.extend(packets.map(|packet| packet.bytes).filter(|bytes| bytes.len() >= 14));
        }
    }
    frames
}

/// A sequence of numbers without a pattern.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 += 1;
        usize::try_from(scramble(self.0) >> 33).expect("31 bits") % limit.max(1)
    }
}

/// A frame with up to four bytes that are wrong, mostly in the headers, and an end that may be missing or added.
fn damaged(numbers: &mut Numbers, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut frame = frames[numbers.below(frames.len())].clone();
    for _ in 0..numbers.below(5) {
        let at = numbers.below(frame.len().min(120));
        frame[at] = match numbers.below(3) {
            0 => u8::try_from(numbers.below(256)).expect("a byte"),
            1 => MEANINGFUL[numbers.below(MEANINGFUL.len())],
            _ => frame[at] ^ (1 << numbers.below(8)),
        };
    }
    match numbers.below(8) {
        0 => frame.truncate(14 + numbers.below(frame.len() - 13)),
        1 => frame.extend(std::iter::repeat_n(0, numbers.below(300))),
        _ => {}
    }
    frame
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn the_parser_reads_no_byte_outside_of_packets_and_agrees_with_the_core() {
    let (frames, mut program) = (frames(), Program::start());
    let seed = number("SOCKET_SEED").unwrap_or(1);
    let time = number("FUZZ_SECONDS").map(Duration::from_secs);
    let (start, mut numbers, mut cases, mut packets) = (Instant::now(), Numbers(seed << 40), 0, 0);
    while time.map_or(cases < CASES, |time| start.elapsed() < time) {
        let frame = damaged(&mut numbers, &frames);
        let is_gso = numbers.below(8) == 0;
        let linear = if numbers.below(2) == 0 { frame.len() } else { numbers.below(frame.len() + 1) };
        let expected = by_model(&frame, is_gso);
        let headers = match parse(&frame, 14, is_gso) {
            Parsed::Packet(headers) => Some(headers),
            Parsed::Foreign | Parsed::Short => None,
        };
        let read = program.read(&Request { frame: &frame, linear, gso_size: if is_gso { 1_000 } else { 0 } });
        assert_eq!(by_program(read, headers.as_ref()), expected, "SOCKET_SEED={seed}, packet {cases}: {frame:02x?}");
        cases += 1;
        packets += usize::from(headers.is_some());
    }
    println!("{cases} packets, {packets} of them read");
    assert!(packets * 10 > cases, "only {packets} of {cases} packets were read");
}

/// Two fragment headers; the second is that of a whole datagram (RFC 6946): the identification is that of the first.
#[test]
fn a_whole_datagram_in_a_fragment_has_the_identification_of_the_fragment() {
    let mut frame = vec![2, 0, 0, 0, 1, 3, 2, 0, 0, 0, 0, 0xaa, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 36, 44, 64];
    frame.extend([0x20, 0x01, 0x0d, 0xb8, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    frame.extend([0x20, 0x01, 0x0d, 0xb8, 0, 15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    frame.extend([44, 0, 0, 1, 4, 0, 0, 0]);
    frame.extend([6, 0, 0, 0, 0, 0, 0, 0]);
    frame.extend([0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0x10, 0, 0xa7, 0xbc, 0, 0]);
    let Parsed::Packet(headers) = parse(&frame, 14, false) else { panic!("a packet") };
    let read = Program::start().read(&Request { frame: &frame, linear: frame.len(), gso_size: 0 });
    assert_eq!(by_program(read, Some(&headers)), by_model(&frame, false));
}
