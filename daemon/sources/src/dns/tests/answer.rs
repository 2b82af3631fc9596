use hickory_proto::op::{MessageType, OpCode};
use proptest::prelude::*;

use super::*;
use crate::dns::server::{address, alias, soa, srv};

fn question(record: RecordType) -> Question {
    Question { name: DnsName::of_labels("web.example").unwrap(), record }
}

fn message(answers: Vec<Record>) -> Message {
    let mut message = Message::new(1, MessageType::Response, OpCode::Query);
    message.add_answers(answers);
    message
}

#[test]
fn the_shortest_ttl_of_a_chain_counts_and_other_records_do_not() {
    let chain = message(vec![
        alias("web.example", 30, "a.example"),
        address("a.example", 60, "192.0.2.2"),
        address("a.example", 60, "192.0.2.1"),
        address("a.example", 60, "192.0.2.1"),
        address("other.example", 1, "192.0.2.9"),
        address("a.example", 1, "2001:db8::1"),
    ]);
    let addresses = ["192.0.2.1", "192.0.2.2"].map(|addr| addr.parse().unwrap()).to_vec();
    assert_eq!(read(&question(RecordType::A), &chain), Ok(Answer::Records(Records::Addresses(addresses), 30)));
}

#[test]
fn absence_has_the_ttl_of_the_zone_and_a_ttl_with_the_highest_bit_is_0() {
    let mut empty = message(Vec::new());
    assert_eq!(read(&question(RecordType::A), &empty), Ok(Answer::Empty(None)));
    empty.add_authority(soa(7));
    assert_eq!(read(&question(RecordType::A), &empty), Ok(Answer::Empty(Some(7))));
    empty.metadata.response_code = ResponseCode::NXDomain;
    assert_eq!(read(&question(RecordType::A), &empty), Ok(Answer::NoSuchName(Some(7))));
    let Ok(Answer::Records(_, ttl)) =
        read(&question(RecordType::A), &message(vec![address("web.example", u32::MAX, "192.0.2.1")]))
    else {
        panic!("no records");
    };
    assert_eq!(ttl, 0);
}

#[test]
fn srv_records_without_a_usable_target_count_as_none() {
    let records = vec![srv("web.example", 5, [0, 0, 80], "."), srv("web.example", 5, [0, 0, 0], "a.example")];
    assert_eq!(read(&question(RecordType::Srv), &message(records)), Ok(Answer::Empty(None)));
}

/// All targets of an answer may be ports of one host, which has every address of the additional section.
#[test]
fn an_answer_has_a_limited_number_of_addresses() {
    let targets = (1..=1_000).map(|port| srv("web.example", 5, [0, 1, port], "a.example"));
    let mut whole = message(targets.collect());
    whole.add_additionals((0..2_000_u16).map(|host| {
        let [high, low] = host.to_be_bytes();
        address("a.example", 5, &format!("10.0.{high}.{low}"))
    }));
    let bytes = whole.to_vec().unwrap();
    assert!(bytes.len() < 1 << 16, "{} bytes fit in an answer over TCP", bytes.len());
    let Ok(Answer::Records(Records::Targets(targets), _)) =
        read(&question(RecordType::Srv), &Message::from_vec(&bytes).unwrap())
    else {
        panic!("no targets");
    };
    assert_eq!(targets.len(), 1_000);
    assert_eq!(targets.iter().map(|target| target.addresses.len()).sum::<usize>(), MAX_RECORDS);
}

proptest! {
    /// Arbitrary bytes from a server, and a valid message with damaged bytes, are read or refused.
    #[test]
    fn hostile_messages_end_here(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0_usize..80) {
        let valid = message(vec![
            alias("web.example", 5, "a.example"),
            address("a.example", 5, "192.0.2.1"),
            srv("web.example", 5, [1, 1, 80], "a.example"),
        ]);
        let mut damaged = valid.to_vec().unwrap();
        if let (Some(byte), Some(new)) = (damaged.get_mut(at), bytes.first()) {
            *byte = *new;
        }
        for bytes in [bytes, damaged] {
            if let Ok(message) = Message::from_vec(&bytes) {
                for record in [RecordType::A, RecordType::Aaaa, RecordType::Srv] {
                    let _either: Result<Answer, String> = read(&question(record), &message);
                }
            }
        }
    }
}

#[test]
fn records_of_other_classes_do_not_count() {
    let mut chaos = address("web.example", 5, "192.0.2.1");
    chaos.dns_class = DNSClass::CH;
    let answer = |records| read(&question(RecordType::A), &message(records)).unwrap();
    assert_eq!(answer(vec![chaos.clone()]), Answer::Empty(None));
    let addresses = vec!["192.0.2.2".parse().unwrap()];
    let both = vec![chaos, address("web.example", 5, "192.0.2.2")];
    assert_eq!(answer(both), Answer::Records(Records::Addresses(addresses), 5));
}

#[test]
fn addresses_that_no_host_has_are_refused() {
    for addr in [
        "0.0.0.0",
        "0.1.2.3",
        "240.0.0.1",
        "255.255.255.254",
        "255.255.255.255",
        "224.0.0.1",
        "127.0.0.1",
        "::ffff:0.1.2.3",
    ] {
        assert!(refusal(addr.parse().unwrap()).is_some(), "{addr}");
    }
    for addr in ["1.0.0.0", "192.0.2.1", "223.255.255.255", "10.0.0.1", "2001:db8::1"] {
        assert!(refusal(addr.parse().unwrap()).is_none(), "{addr}");
    }
}
