use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;

use netlink_packet_sock_diag::constants::{IPPROTO_TCP, TCP_CLOSE, TCP_LISTEN};

use super::*;

/// A request to a kernel (6.18, x86-64), and its answer: two TCP listeners of IPv6, the first IPv6-only.
const ASKED: &str = "\
    480000001400010307000000000000000a06000000040000000000000000000000000000000000000000000000000000\
    000000000000000000000000000000000000000000000000";
const ANSWERED: &str = "\
    840000001400020007000000877b00000a0a000075820000000000000000000000000000000000000000000000000000\
    0000000000000000000000002e000000000000000000000000000000800000000000000055d351010500080000000000\
    05000b000100000008000f00000000000c00150001000000000000000600160012000000840000001400020007000000\
    877b00000a0a000075810000000000000000000000000000000000000000000000000000000000000000000000000000\
    2f000000000000000000000000000000800000000000000054d35101050008000000000005000b000000000008000f00\
    000000000c00150001000000000000000600160012000000";
/// A UDP socket of IPv4.
const ANSWERED_UDP: &str = "\
    7c0000001400020007000000877b00000207000075830000000000000000000000000000000000000000000000000000\
    0000000000000000000000002d000000000000000000000000000000000000000000000056d351010500080000000000\
    08000f00000000000c00150001000000000000000600160050000000";
const DONE: &str = "140000000300020007000000877b000000000000";

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[cfg(target_endian = "little")]
#[test]
fn asks_as_recorded() {
    let request = all(AF_INET6, IPPROTO_TCP, StateFlags::LISTEN);
    assert_eq!(encode(&request, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 7), bytes(ASKED));
}

#[cfg(target_endian = "little")]
#[test]
fn reads_what_was_recorded() {
    let answers = decode(&bytes(ANSWERED));
    let [Answer::Socket(first), Answer::Socket(second)] = answers.as_slice() else { panic!("{answers:?}") };
    let (v6, id) = (&first.header, &first.header.socket_id);
    assert_eq!((id.source_port, first.only_v6, v6.state), (30_082, true, TCP_LISTEN));
    assert_eq!(first.cgroup, Some(1));
    let other = &second.header;
    assert_eq!((other.socket_id.source_port, second.only_v6, other.state), (30_081, false, TCP_LISTEN));
    assert_eq!((id.source_address, v6.uid, v6.inode), (IpAddr::from(Ipv6Addr::UNSPECIFIED), 0, 0x0151_d355));
    assert_eq!((id.cookie, id.interface_id), ([0x2e, 0, 0, 0, 0, 0, 0, 0], 0));
    let answers = decode(&bytes(ANSWERED_UDP));
    let [Answer::Socket(udp)] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(
        (udp.header.family, udp.header.socket_id.source_address, udp.header.socket_id.source_port),
        (AF_INET, IpAddr::from(Ipv4Addr::UNSPECIFIED), 30_083)
    );
    assert_eq!((udp.header.state, udp.only_v6), (TCP_CLOSE, false));
    assert_eq!(decode(&bytes(DONE)), [Answer::Done]);
}

#[test]
fn an_answer_cut_short_anywhere_yields_what_is_whole() {
    let whole = bytes(ANSWERED);
    for length in 0..whole.len() {
        assert!(decode(&whole[..length]).len() <= 1, "{length}");
    }
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut changed = whole.clone();
            changed[at] = value;
            decode(&changed);
        }
    }
}

#[test]
fn errors_and_acknowledgements_are_distinguished() {
    let error = |number: i32| {
        let mut bytes = [36_u32.to_ne_bytes(), [2, 0, 0, 0], [0; 4], [0; 4], number.to_ne_bytes()].concat();
        bytes[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        bytes.resize(36, 0);
        bytes
    };
    assert_eq!(decode(&error(-2)), [Answer::Error(2)]);
    assert_eq!(decode(&error(0)), [Answer::Error(0)]);
}

#[test]
fn finds_the_sockets_of_this_process() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut diag = SockDiag::open().unwrap();
    let mut find = |protocol, state, wanted: SocketAddr| {
        let mut found = Vec::new();
        let request = all(AF_INET, protocol, state);
        diag.dump(&request, |socket| {
            let id = &socket.header.socket_id;
            if (id.source_address, id.source_port) == (wanted.ip(), wanted.port()) {
                found.push(socket.clone());
            }
        })
        .unwrap();
        found
    };
    let listener = find(IPPROTO_TCP, StateFlags::LISTEN, tcp.local_addr().unwrap());
    assert_eq!((listener.len(), listener[0].header.uid), (1, nix::unistd::getuid().as_raw()));
    assert_eq!(find(IPPROTO_UDP, StateFlags::CLOSE, udp.local_addr().unwrap()).len(), 1);
    let gone = tcp.local_addr().unwrap();
    drop(tcp);
    assert_eq!(find(IPPROTO_TCP, StateFlags::LISTEN, gone), []);
}

#[test]
fn the_peer_of_a_socket_is_in_the_list() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let stream = std::net::TcpStream::connect(at).unwrap();
    assert_eq!(peer(stream.as_fd(), stream.local_addr().unwrap(), IPPROTO_TCP).unwrap(), Some(at));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let read = || peer(socket.as_fd(), socket.local_addr().unwrap(), IPPROTO_UDP).unwrap();
    assert_eq!(read(), None);
    socket.connect(at).unwrap();
    assert_eq!(read(), Some(at));
}

/// On a host with many connections, sockets to different destinations share a local port.
#[test]
fn sockets_with_the_same_local_address_are_distinguished() {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let connect = |listener: &TcpListener, source: SocketAddr| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&source.into()).unwrap();
        socket.connect(&listener.local_addr().unwrap().into()).unwrap();
        socket
    };
    let one = connect(&listeners[0], "127.0.0.1:0".parse().unwrap());
    let source = one.local_addr().unwrap().as_socket().unwrap();
    let other = connect(&listeners[1], source);
    for (socket, listener) in [(&one, &listeners[0]), (&other, &listeners[1])] {
        let to = SocketAddr::new(source.ip(), listener.local_addr().unwrap().port());
        assert_eq!(peer(socket.as_fd(), source, IPPROTO_TCP).unwrap(), Some(to));
    }
}
