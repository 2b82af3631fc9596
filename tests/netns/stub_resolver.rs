//! A stub resolver (unbound) of the node, as many nodes have one at 127.0.0.53: it forwards all questions to a DNS service
//! that nodelb balances. No question fails while nodelb is killed and restarted and the backend is replaced.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RData, RecordType};
use nodelb_prober::{SetAtEnd, Transport};

use crate::host::{Host, eventually, is_served_by, say, service};
use crate::sandbox;
use crate::unbound::Unbound;

const SERVICE: &str = "198.51.100.12";
/// The backends. Each answers with its own address.
const OLD: &str = "192.0.2.61";
const NEW: &str = "192.0.2.62";
/// The stub resolvers. The first one queries the service over UDP, the second one over TCP.
const STUBS: [&str; 2] = ["127.0.0.53", "127.0.0.54"];
/// The time limit of a query, which is sent once.
const TIMEOUT: Duration = Duration::from_secs(5);

fn start_stub(host: &Host, at: &str, is_tcp: bool) -> Unbound {
    let is_tcp = if is_tcp { "yes" } else { "no" };
    // Without a cache, each question reaches the service.
    let zone = format!("forward-zone:\n  name: \".\"\n  forward-addr: {SERVICE}\n  forward-tcp-upstream: {is_tcp}\n");
    Unbound::start(host, at, &format!("  cache-max-ttl: 0\n  local-zone: \"example.\" nodefault\n{zone}"))
}

fn start_backend(host: &Host, at: &str) -> Unbound {
    let data = format!("  local-zone: \"example.\" static\n  local-data: \"web.example. 1 IN A {at}\"\n");
    Unbound::start(host, at, &data)
}

/// Queries the address of `web.example` once.
fn ask(stub: &str, transport: Transport) -> io::Result<String> {
    let to = SocketAddr::new(stub.parse().unwrap(), 53);
    let mut query = Message::query();
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(Name::from_ascii("web.example.").unwrap(), RecordType::A));
    let bytes = query.to_vec().map_err(io::Error::other)?;
    let mut answer = vec![0; 1_232];
    if transport == Transport::Tcp {
        let mut stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let length = u16::try_from(bytes.len()).unwrap();
        stream.write_all(&[&length.to_be_bytes()[..], &bytes].concat())?;
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        answer.truncate(u16::from_be_bytes(length).into());
        stream.read_exact(&mut answer)?;
    } else {
        let client = UdpSocket::bind("127.0.0.1:0")?;
        client.set_read_timeout(Some(TIMEOUT))?;
        client.connect(to)?;
        client.send(&bytes)?;
        let length = client.recv(&mut answer)?;
        answer.truncate(length);
    }
    let answer = Message::from_vec(&answer).map_err(io::Error::other)?;
    let address = answer.answers.iter().find_map(|record| match &record.data {
        RData::A(address) => Some(address.0.to_string()),
        _ => None,
    });
    address.ok_or_else(|| io::Error::other(format!("{:?}", answer.metadata.response_code)))
}

/// One client; sends what it has learned, and when.
fn client(stub: &'static str, transport: Transport, is_over: &AtomicBool, answers: &Sender<(Instant, String)>) {
    while !is_over.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let answer = ask(stub, transport).unwrap_or_else(|error| format!("{stub} over {transport:?}: {error}"));
        answers.send((asked, answer)).unwrap();
        thread::sleep(Duration::from_millis(2));
    }
}

fn serve(host: &Host, backend: &str) {
    host.serve("a.toml", &service("shop/dns", &[&format!("{SERVICE}:53")], &[&format!("{backend}:53")]));
    for transport in ["TCP", "UDP"] {
        let (frontend, backend) = (format!("{SERVICE}:53/{transport}"), format!("{backend}:53/{transport}"));
        eventually("the DNS server", || is_served_by(&frontend, &[&backend]));
    }
}

/// Panics if any question has failed, or has got an answer of the former backend after its end.
fn check(answers: &Receiver<(Instant, String)>, since: Instant) {
    let answers: Vec<_> = answers.iter().collect();
    let wrong = answers.iter().find(|(asked, answer)| !(answer == NEW || answer == OLD && *asked < since));
    assert!(wrong.is_none(), "{wrong:?}, {:?} after the replacement", wrong.map(|(asked, _)| *asked - since));
    for backend in [OLD, NEW] {
        let count = answers.iter().filter(|(_, answer)| answer == backend).count();
        say(&format!("{count} answers of {backend}"));
        assert!(count > 500, "{count} answers of {backend}");
    }
}

#[test]
fn no_question_to_a_stub_resolver_fails() {
    sandbox::run("stub_resolver::no_question_to_a_stub_resolver_fails", |sandbox| {
        let host = Host::new(sandbox);
        let old = start_backend(&host, OLD);
        host.serve("a.toml", &service("shop/dns", &[&format!("{SERVICE}:53")], &[&format!("{OLD}:53")]));
        let daemon = host.start();
        let _stubs = [start_stub(&host, STUBS[0], false), start_stub(&host, STUBS[1], true)];
        let (is_over, (sender, answers)) = (AtomicBool::new(false), channel());
        thread::scope(|scope| {
            let over = SetAtEnd(&is_over);
            for (stub, transport) in
                STUBS.iter().flat_map(|stub| [Transport::Udp, Transport::Tcp].map(|it| (*stub, it)))
            {
                let (sender, is_over) = (sender.clone(), &is_over);
                scope.spawn(move || client(stub, transport, is_over, &sender));
            }
            drop(sender);
            let pause = || thread::sleep(Duration::from_millis(500));
            pause();
            daemon.kill();
            pause();
            let daemon = host.start();
            pause();
            daemon.stop();
            pause();
            let daemon = host.start();

            // The backend is replaced as operators do it: the other one is served, and then the former one ends.
            let new = start_backend(&host, NEW);
            serve(&host, NEW);
            pause();
            drop(old);
            let since = Instant::now();
            pause();
            daemon.kill();
            pause();
            let daemon = host.start();
            pause();
            drop(over);
            check(&answers, since);
            drop(new);
            daemon.stop();
        });
    });
}
