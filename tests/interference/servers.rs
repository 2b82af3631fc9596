//! Two DNS servers: the first one answers for the names of each sequence as that defines, the second one knows none.

use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, SOA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::pair::Pairs;
use super::steps::Says;

/// The name that both servers answer without any effect.
const MARK: &str = "mark.example.";

/// Serves until the run ends.
pub(super) fn start(pairs: Arc<Mutex<Pairs>>, is_first: bool) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let address = socket.local_addr().expect("bound");
    socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    std::thread::spawn(move || {
        let mut datagram = [0; 4_096];
        while !pairs.lock().expect("not poisoned").is_over {
            let Ok((len, client)) = socket.recv_from(&mut datagram) else { continue };
            let query = Message::from_vec(&datagram[..len]).expect("a query");
            if let Some(answer) = answer(&query, &pairs, is_first) {
                drop(socket.send_to(&answer.to_vec().expect("an answer"), client));
            }
        }
    });
    address
}

/// Waits until the server has answered everything that was queried before. Returns whether it has within this time.
pub(super) fn catch_up(server: SocketAddr, limit: Duration) -> bool {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    socket.set_read_timeout(Some(limit)).expect("a timeout");
    let mut query = Message::query();
    query.add_query(Query::query(name(MARK), RecordType::A));
    socket.send_to(&query.to_vec().expect("a query"), server).expect("loopback");
    socket.recv(&mut [0; 512]).is_ok()
}

fn name(text: &str) -> Name {
    Name::from_ascii(text).expect("a name")
}

fn answer(query: &Message, pairs: &Mutex<Pairs>, is_first: bool) -> Option<Message> {
    let asked = query.queries.first().expect("a question").clone();
    let owner = asked.name().to_ascii().to_ascii_lowercase();
    // _http._tcp.a7.example, host.a7.example, a7.example, b7.example
    let label = owner.trim_end_matches('.').rsplit('.').nth(1).unwrap_or_default();
    let is_srv = asked.query_type() == RecordType::SRV;
    let (kind, number) = label.split_at(1);
    let says = match (kind, number.parse::<usize>()) {
        ("a", Ok(number)) => pairs.lock().expect("not poisoned").asked(number, (is_first, is_srv)),
        ("b", Ok(_)) if is_first => Says::Usable(9),
        _ => Says::NoSuchName,
    };
    let mut answer = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
    answer.add_query(asked);
    answer.edns.clone_from(&query.edns);
    let no_records = || {
        let soa = SOA::new(name("ns.example."), name("admin.example."), 1, 60, 60, 60, 1);
        Record::from_rdata(name("example."), 1, RData::SOA(soa))
    };
    let address = match says {
        Says::Silence | Says::Nothing => return None,
        Says::Error => {
            answer.metadata.response_code = ResponseCode::ServFail;
            return Some(answer);
        }
        Says::NoSuchName => {
            answer.metadata.response_code = ResponseCode::NXDomain;
            answer.add_authority(no_records());
            return Some(answer);
        }
        Says::Empty => {
            answer.add_authority(no_records());
            return Some(answer);
        }
        Says::Usable(host) => [192, 0, 2, host],
        Says::OwnFrontend => [10, 96, 2, number.parse().expect("a number")],
        Says::NoHost => [0; 4],
    };
    let targets =
        if is_srv { pairs.lock().expect("not poisoned").targets(number.parse().expect("a number")) } else { 0 };
    let target = |it: u8| RData::SRV(SRV::new(0, 1, 8_080, name(&format!("host{it}.{label}.example."))));
    let data: Vec<RData> = if is_srv { (0..targets).map(target).collect() } else { vec![RData::A(A(address.into()))] };
    answer.add_answers(data.into_iter().map(|data| Record::from_rdata(name(&owner), 1, data)));
    Some(answer)
}
