//! Real clients with different socket calls: each reaches a backend of the service, sees the
//! address that it connected to as its peer, and is refused at once if there is no backend. Prints
//! and skips what this kernel does not support.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nodelb_prober::{Backend, Transport};
use socket2::{Domain, Protocol, Socket, Type};

use crate::host::{Daemon, Host, backend, connect, eventually, is_served_by, say, service, socket};
use crate::pod::Pod;
use crate::sandbox::{self, Sandbox};
use crate::servers;

const SERVICE: &str = "198.51.100.10:80";
const BACKENDS: [&str; 3] = ["192.0.2.11:8080", "192.0.2.12:8080", "192.0.2.13:8080"];
/// The host's address of the first pod of the sandbox.
const POD: &str = "203.0.113.130";
/// A service without backends, and one without local backends although its policy requires one.
const NO_BACKENDS: &str = "198.51.100.20";
const NO_LOCAL_BACKENDS: &str = "198.51.100.21";

/// A node with the service, its backends and a daemon.
struct Node {
    host: Host,
    _daemon: Daemon,
    _backends: Vec<Backend>,
}

impl Node {
    fn start(sandbox: &Sandbox) -> Self {
        let host = Host::new(sandbox);
        let backends = BACKENDS.iter().map(|at| backend(at, at)).collect();
        host.serve("a.toml", &service("shop/web", &[SERVICE], &BACKENDS));
        host.serve("b.toml", &service("shop/none", &[&format!("{NO_BACKENDS}:80"), &format!("{NO_BACKENDS}:53")], &[]));
        host.serve("c.yaml", &elsewhere());
        let daemon = host.start();
        Self { host, _daemon: daemon, _backends: backends }
    }
}

fn elsewhere() -> String {
    let ports = "[{name: t, port: 80}, {name: u, port: 53, protocol: UDP}]";
    let slice_ports = "[{name: t, port: 8080}, {name: u, port: 8080, protocol: UDP}]";
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: local, namespace: shop}}\nspec:\n  clusterIP: {NO_LOCAL_BACKENDS}\n  \
         internalTrafficPolicy: Local\n  ports: {ports}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: local, namespace: shop, labels: {{kubernetes.io/service-name: local}}}}\naddressType: IPv4\n\
         ports: {slice_ports}\nendpoints:\n- {{addresses: [192.0.2.11], nodeName: elsewhere}}\n"
    )
}

fn run(program: &str, arguments: &[&str]) -> Output {
    sandbox::program(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// Reads the backend's name from a connected stream; the peer must be the service.
fn name_of(stream: &Socket, expected: SocketAddr) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(stream.peer_addr().unwrap().as_socket().unwrap(), expected, "getpeername");
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn assert_right(name: &str, backends: &[&str]) {
    assert!(backends.contains(&name), "`{name}` is not one of {backends:?}");
}

fn stream(domain: Domain) -> Socket {
    Socket::new(domain, Type::STREAM, None).unwrap()
}

#[test]
fn curl_and_dig_from_the_host_and_from_a_pod() {
    sandbox::run("clients::curl_and_dig_from_the_host_and_from_a_pod", |sandbox| {
        let host = Host::new(sandbox);
        let (web, names) = (["192.0.2.21:8080", "192.0.2.22:8080"], ["192.0.2.23:53", "192.0.2.24:53"]);
        web.into_iter().for_each(servers::http);
        names.into_iter().for_each(servers::dns);
        host.serve("a.toml", &service("shop/web", &["198.51.100.11:80"], &web));
        host.serve("b.toml", &service("shop/dns", &["198.51.100.12:53"], &names));
        let _daemon = host.start();
        let pod = Pod::new(0);
        for in_pod in [false, true] {
            let client = |program: &str, arguments: &[&str]| {
                let output = if in_pod { pod.run(|| run(program, arguments)) } else { run(program, arguments) };
                assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
                text(&output.stdout)
            };
            let mut seen = BTreeSet::new();
            for _ in 0..20 {
                seen.insert(client("curl", &["-sS", "-w", "%{remote_ip}:%{remote_port}", "http://198.51.100.11/"]));
            }
            let expected: BTreeSet<String> = web.iter().map(|at| format!("{at}\n198.51.100.11:80")).collect();
            assert_eq!(seen, expected, "curl sees every backend, and the service's address as its peer");

            let seen: BTreeSet<String> = (0..20)
                .map(|index| {
                    let over = if index % 4 == 0 { "+tcp" } else { "+notcp" };
                    client("dig", &["@198.51.100.12", "+short", "+tries=1", "+time=5", over, "web.shop.svc"])
                })
                .collect();
            assert_eq!(seen, BTreeSet::from(["192.0.2.23\n".to_owned(), "192.0.2.24\n".to_owned()]), "dig");
        }
    });
}

#[test]
fn a_pod_reaches_itself_and_is_seen_as_itself() {
    sandbox::run("clients::a_pod_reaches_itself_and_is_seen_as_itself", |sandbox| {
        let host = Host::new(sandbox);
        let pod = Pod::new(0);
        let inside = format!("{POD}:8080");
        let _backend = pod.run(|| backend("pod", &inside));
        let outside = TcpListener::bind("192.0.2.21:8080").unwrap();
        host.serve("a.toml", &service("shop/pod", &["198.51.100.14:80"], &[&inside]));
        host.serve("b.toml", &service("shop/host", &["198.51.100.15:80"], &["192.0.2.21:8080"]));
        let _daemon = host.start();
        for transport in [Transport::Tcp, Transport::Udp, Transport::UdpUnconnected] {
            for tally in
                [connect("198.51.100.14:80", transport, 20), pod.run(|| connect("198.51.100.14:80", transport, 20))]
            {
                assert_eq!(tally.answered.get("pod"), Some(&20), "{transport:?}: {tally}");
            }
        }
        let stream = pod.run(|| TcpStream::connect("198.51.100.15:80")).unwrap();
        let (_, client) = outside.accept().unwrap();
        assert_eq!(client.ip().to_string(), POD, "the server sees the pod");
        drop(stream);
    });
}

#[test]
fn a_kept_connection_stays_with_its_backend() {
    sandbox::run("clients::a_kept_connection_stays_with_its_backend", |sandbox| {
        let host = Host::new(sandbox);
        let web = ["192.0.2.21:8080", "192.0.2.22:8080", "192.0.2.23:8080"];
        web.into_iter().for_each(servers::http);
        host.serve("a.toml", &service("shop/web", &["198.51.100.11:80"], &web));
        let _daemon = host.start();
        let stream = TcpStream::connect("198.51.100.11:80").unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut answers = BufReader::new(&stream).lines();
        let mut ask = || {
            (&stream).write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n").unwrap();
            let headers = answers.by_ref().map(Result::unwrap).take_while(|line| !line.is_empty()).count();
            assert!(headers > 0, "the connection has ended");
            answers.next().unwrap().unwrap()
        };
        let first = ask();
        let others: Vec<&str> = web.into_iter().filter(|at| *at != first).collect();
        let mut asked = 0;
        for left in [&others[..], &others[..1], &[], &web] {
            host.serve("a.toml", &service("shop/web", &["198.51.100.11:80"], left));
            let names: Vec<String> = left.iter().map(|at| format!("{at}/TCP")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            eventually("the new list", || is_served_by("198.51.100.11:80/TCP", &names));
            for _ in 0..50 {
                asked += 1;
                assert_eq!(ask(), first, "request {asked}, with {left:?} behind the service");
            }
        }
        assert_eq!(stream.peer_addr().unwrap(), socket("198.51.100.11:80"));
    });
}

#[test]
fn a_connected_udp_socket_goes_on_with_its_backend() {
    sandbox::run("clients::a_connected_udp_socket_goes_on_with_its_backend", |sandbox| {
        let node = Node::start(sandbox);
        // Like QUIC: one connected socket, many datagrams, several of them in flight.
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        client.connect(SERVICE).unwrap();
        let mut names = BTreeSet::new();
        for round in 0..100 {
            if round == 50 {
                let held: Vec<&str> = BACKENDS.into_iter().filter(|at| names.contains(*at)).collect();
                node.host.serve("a.toml", &service("shop/web", &[SERVICE], &held));
                eventually("the others go", || is_served_by(&format!("{SERVICE}/UDP"), &[&format!("{}/UDP", held[0])]));
            }
            let sent: BTreeSet<String> = (0..8).map(|index| format!("{round}-{index}")).collect();
            for datagram in &sent {
                client.send(datagram.as_bytes()).unwrap();
            }
            let mut echoed = BTreeSet::new();
            for _ in &sent {
                let mut buffer = [0; 64];
                let (length, from) = client.recv_from(&mut buffer).unwrap();
                assert_eq!(from, socket(SERVICE), "recvmsg");
                let answer = text(&buffer[..length]);
                let (name, echo) = answer.split_once(' ').unwrap();
                names.insert(name.to_owned());
                echoed.insert(echo.to_owned());
            }
            assert_eq!(echoed, sent);
        }
        assert_eq!(names.len(), 1, "one backend for all: {names:?}");
        assert_eq!(client.peer_addr().unwrap(), socket(SERVICE));
    });
}

#[test]
fn sockets_of_one_family_and_of_both() {
    sandbox::run("clients::sockets_of_one_family_and_of_both", |sandbox| {
        let node = Node::start(sandbox);
        let six = ["[2001:db8:b::11]:8080", "[2001:db8:b::12]:8080"];
        let _six = six.map(|at| backend(at, at));
        node.host.serve("six.toml", &service("shop/six", &["[2001:db8:f::10]:80"], &six));
        eventually("the service", || {
            is_served_by("[2001:db8:f::10]:80/TCP", &six.map(|at| format!("{at}/TCP")).each_ref().map(String::as_str))
        });
        let (service6, mapped) = (socket("[2001:db8:f::10]:80"), socket("[::ffff:198.51.100.10]:80"));
        for _ in 0..20 {
            let only6 = stream(Domain::IPV6);
            only6.set_only_v6(true).unwrap();
            only6.connect(&service6.into()).unwrap();
            assert_right(&name_of(&only6, service6), &six);

            let both = stream(Domain::IPV6);
            both.set_only_v6(false).unwrap();
            both.connect(&mapped.into()).unwrap();
            assert_right(&name_of(&both, mapped), &BACKENDS);
        }
        // An IPv6-only socket cannot reach IPv4, with or without a service.
        let only6 = stream(Domain::IPV6);
        only6.set_only_v6(true).unwrap();
        let error = only6.connect(&mapped.into()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ENETUNREACH as i32), "{error}");
    });
}

#[test]
fn connects_that_do_not_block() {
    sandbox::run("clients::connects_that_do_not_block", |sandbox| {
        let _node = Node::start(sandbox);
        for _ in 0..20 {
            let client = stream(Domain::IPV4);
            client.set_nonblocking(true).unwrap();
            let error = client.connect(&socket(SERVICE).into()).err();
            assert!(error.is_none_or(|error| error.raw_os_error() == Some(Errno::EINPROGRESS as i32)));
            let mut ready = [PollFd::new(client.as_fd(), PollFlags::POLLOUT)];
            assert_eq!(poll(&mut ready, PollTimeout::from(5_000_u16)).unwrap(), 1);
            assert!(client.take_error().unwrap().is_none());
            client.set_nonblocking(false).unwrap();
            assert_right(&name_of(&client, socket(SERVICE)), &BACKENDS);

            // connect() itself returns the error, even on a non-blocking socket.
            for (to, expected) in [(NO_BACKENDS, Errno::ECONNREFUSED), (NO_LOCAL_BACKENDS, Errno::EHOSTUNREACH)] {
                let client = stream(Domain::IPV4);
                client.set_nonblocking(true).unwrap();
                let error = client.connect(&socket(&format!("{to}:80")).into()).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(expected as i32), "{to}: {error}");
            }
        }
    });
}

#[test]
fn ports_that_are_shared() {
    sandbox::run("clients::ports_that_are_shared", |sandbox| {
        let node = Node::start(sandbox);
        // Several workers of one backend, and one source port for connections to several services.
        let at = socket("192.0.2.31:8080");
        let workers: Vec<Socket> = (0..4).map(|_| shared(Type::STREAM, at)).collect();
        for worker in workers {
            worker.listen(16).unwrap();
            thread::spawn(move || {
                while let Ok((mut client, _)) = worker.accept() {
                    drop(client.write_all(b"192.0.2.31:8080\n"));
                }
            });
        }
        node.host.serve("d.toml", &service("shop/workers", &["198.51.100.13:80"], &["192.0.2.31:8080"]));
        eventually("the service", || is_served_by("198.51.100.13:80/TCP", &["192.0.2.31:8080/TCP"]));
        let own = socket("192.0.2.200:40000");
        let clients = [(SERVICE, &BACKENDS[..]), ("198.51.100.13:80", &["192.0.2.31:8080"])].map(|(to, backends)| {
            let client = shared(Type::STREAM, own);
            client.connect(&socket(to).into()).unwrap();
            assert_right(&name_of(&client, socket(to)), backends);
            client
        });
        drop(clients);
        let udp: UdpSocket = shared(Type::DGRAM, own).into();
        udp.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        udp.send_to(b"?", SERVICE).unwrap();
        let mut buffer = [0; 64];
        let (length, from) = udp.recv_from(&mut buffer).unwrap();
        assert_eq!(from, socket(SERVICE));
        assert_right(text(&buffer[..length]).trim_end_matches(" ?"), &BACKENDS);
    });
}

fn shared(kind: Type, at: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::for_address(at), kind, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&at.into()).unwrap();
    socket
}

#[test]
fn mptcp_sockets_name_the_service_as_their_peer() {
    sandbox::run("clients::mptcp_sockets_name_the_service_as_their_peer", |sandbox| {
        let _node = Node::start(sandbox);
        for (domain, to) in [(Domain::IPV4, SERVICE), (Domain::IPV6, "[::ffff:198.51.100.10]:80")] {
            let to = socket(to);
            let open = || Socket::new(domain, Type::STREAM, Some(Protocol::MPTCP));
            if let Err(error) = open() {
                return say(&format!("this kernel has no MPTCP ({error}): not checked"));
            }
            let seen: BTreeSet<String> = (0..40)
                .map(|_| {
                    let client = open().unwrap();
                    client.connect(&to.into()).unwrap();
                    name_of(&client, to)
                })
                .collect();
            assert_eq!(seen, BACKENDS.map(str::to_owned).into(), "MPTCP to {to}");
        }
        for (to, expected) in [(NO_BACKENDS, Errno::ECONNREFUSED), (NO_LOCAL_BACKENDS, Errno::EHOSTUNREACH)] {
            let client = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).unwrap();
            let error = client.connect(&socket(&format!("{to}:80")).into()).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(expected as i32), "{to}: {error}");
        }
    });
}

#[test]
fn io_uring() {
    const NO_URING: i32 = 77;
    sandbox::run("clients::io_uring", |sandbox| {
        let node = Node::start(sandbox);
        let client = build_uring(&node.host.path("uring"));
        let connect = |to: &str| {
            let to: SocketAddrV4 = to.parse().unwrap();
            run(client.to_str().unwrap(), &[&to.ip().to_string(), &to.port().to_string()])
        };
        if connect(SERVICE).status.code() == Some(NO_URING) {
            return say("this kernel has no io_uring: not checked");
        }
        let seen: BTreeSet<String> = (0..40).map(|_| text(&connect(SERVICE).stdout)).collect();
        assert_eq!(seen, BACKENDS.iter().map(|at| format!("{SERVICE} {at}\n")).collect());
        for (to, expected) in [(NO_BACKENDS, Errno::ECONNREFUSED), (NO_LOCAL_BACKENDS, Errno::EHOSTUNREACH)] {
            assert_eq!(connect(&format!("{to}:80")).status.code(), Some(expected as i32), "{to}");
        }
    });
}

/// The client is written in C because no crate needs only the kernel's headers. clang is required
/// for the BPF programs anyway.
fn build_uring(to: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients/uring.c");
    let output =
        sandbox::program("clang").args(["-Wall", "-Werror", "-O1", "-o"]).arg(to).arg(source).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    to.to_path_buf()
}

#[test]
fn many_threads() {
    sandbox::run("clients::many_threads", |sandbox| {
        let _node = Node::start(sandbox);
        let tallies: Vec<_> = thread::scope(|scope| {
            let client = |index: usize| {
                let transport = [Transport::Tcp, Transport::Udp, Transport::UdpUnconnected][index % 3];
                scope.spawn(move || connect(SERVICE, transport, 100))
            };
            let clients: Vec<_> = (0..64).map(client).collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        for tally in &tallies {
            assert_eq!(tally.failures(), 0, "{tally}");
            assert_eq!(tally.answered.len(), BACKENDS.len(), "{tally}");
        }
    });
}

/// How a system call to the address ended under strace, and after how many seconds.
fn traced(program: &[&str], to: &str) -> Option<(String, f64)> {
    // A file for each thread: in a common one, a call and its result may be two lines.
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("thread");
    let calls = "trace=connect,sendto,sendmsg,sendmmsg";
    run("strace", &[&["-ff", "-T", "-e", calls, "-o", output.to_str().unwrap(), "--"], program].concat());
    let said: String =
        folder.path().read_dir().unwrap().map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    let call = said.lines().find(|line| line.contains(&format!("\"{to}\"")))?;
    let (_, result) = call.rsplit_once(" = ")?;
    let errno = result.split(' ').nth(1)?.to_owned();
    let seconds = result.rsplit_once('<')?.1.trim_end_matches('>').parse().ok()?;
    Some((errno, seconds))
}

#[test]
fn refusals_as_strace_sees_them() {
    sandbox::run("clients::refusals_as_strace_sees_them", |sandbox| {
        let _node = Node::start(sandbox);
        for (to, expected) in [(NO_BACKENDS, "ECONNREFUSED"), (NO_LOCAL_BACKENDS, "EHOSTUNREACH")] {
            let (url, server) = (format!("http://{to}/"), format!("@{to}"));
            let curl = ["curl", "-sS", "--max-time", "5", &url];
            let dig = ["dig", &server, "+tries=1", "+time=5", "web.shop.svc"];
            for program in [&curl[..], &dig[..]] {
                // The fastest of several: a busy machine may interrupt a system call.
                let seen: Vec<_> =
                    (0..5).map(|_| traced(program, to).unwrap_or_else(|| panic!("{program:?}"))).collect();
                assert!(seen.iter().all(|(errno, _)| errno == expected), "{program:?}: {seen:?}");
                let best = seen.iter().map(|(_, seconds)| *seconds).fold(f64::INFINITY, f64::min);
                say(&format!("{}: {expected} after {:.3} ms", program[0], best * 1e3));
                assert!(best < 0.010, "{program:?}: {seen:?}");
            }
        }
    });
}
