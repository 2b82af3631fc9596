use super::*;
use crate::sockets::netfilter::tests::encode;

const NESTED: u16 = 0x8000;

fn tuple(source: &str, target: &str, protocol: u8) -> Vec<u8> {
    let [source, target]: [std::net::SocketAddr; 2] = [source, target].map(|text| text.parse().unwrap());
    let octets = |addr: IpAddr| match addr {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    };
    let kinds = if source.is_ipv4() { [V4_SOURCE, V4_TARGET] } else { [V6_SOURCE, V6_TARGET] };
    let ip = [encode(kinds[0], &octets(source.ip())), encode(kinds[1], &octets(target.ip()))].concat();
    let ports = [(PROTO_SOURCE_PORT, source), (PROTO_TARGET_PORT, target)];
    let ports = ports.map(|(kind, end)| encode(kind, &end.port().to_be_bytes())).concat();
    let proto = [encode(PROTO_NUMBER, &[protocol]), ports].concat();
    [encode(NESTED | TUPLE_IP, &ip), encode(NESTED | TUPLE_PROTO, &proto)].concat()
}

fn connection(reply: &[u8], status: u32) -> Vec<u8> {
    let original = tuple("203.0.113.10:40000", "198.51.100.101:80", 6);
    [encode(NESTED | 1, &original), encode(NESTED | TUPLE_REPLY, reply), encode(STATUS, &status.to_be_bytes())].concat()
}

#[test]
fn the_ends_of_a_masqueraded_connection_are_those_of_its_answers() {
    let listed = |reply: &[u8], status| ends(&connection(reply, status)).map(|(from, to)| format!("{from} {to}"));
    let v4 = tuple("203.0.113.66:8002", "203.0.113.2:10007", 6);
    assert_eq!(listed(&v4, SOURCE_NAT | 2).as_deref(), Some("203.0.113.66:8002/TCP 203.0.113.2:10007/TCP"));
    let v6 = tuple("[2001:db8:b1::2]:53", "[2001:db8:1::2]:10008", 17);
    assert_eq!(listed(&v6, SOURCE_NAT).as_deref(), Some("[2001:db8:b1::2]:53/UDP [2001:db8:1::2]:10008/UDP"));
    assert_eq!(listed(&v4, 32), None, "only its destination was replaced");
    assert_eq!(listed(&tuple("203.0.113.66:1", "203.0.113.2:2", 1), SOURCE_NAT), None, "not TCP or UDP");
    let in_state = |state: u8| {
        let tcp = encode(NESTED | PROTOINFO_TCP, &encode(PROTOINFO_TCP_STATE, &[state]));
        [connection(&v4, SOURCE_NAT), encode(NESTED | PROTOINFO, &tcp)].concat()
    };
    let has_ended = [3, 4, 5, 6, 7, 8].map(|state| ends(&in_state(state)).is_none());
    assert_eq!(has_ended, [false, false, false, false, true, true]);
    let whole = connection(&v4, SOURCE_NAT);
    for length in 0..whole.len() {
        assert_eq!(ends(&whole[..length]), None, "{length} bytes");
    }
}
