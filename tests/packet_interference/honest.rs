//! The honest clients: each has one connection after the other, or sends one query after the other, from a port of its
//! own. What it is to do waits until what it does has ended.

use std::collections::VecDeque;

use nodelb_programs::key::Endpoint;

use crate::socket::{Event, Socket, State};
use crate::stack::{Seen, Stack};
use crate::tag::{Kind, Label, Message};
use crate::wire::{Parcel, Segment};

/// Bytes of a message: most, one that is larger than the MTU to a remote backend, and one in fragments.
pub(crate) const SHORT: usize = 64;
const LARGE: usize = 1_440;
const SPLIT: usize = 1_600;

/// Where the honest clients cut their datagrams, in bytes after the IP header.
const FIRST: u16 = 1_200;

/// The ids that honest clients give to datagrams in fragments. Strangers with other addresses use them, too.
pub(crate) const IDS: u32 = 4;

const MILLI: u64 = 1_000_000;

/// When a client repeats what was not answered, and when it gives up, in nanoseconds.
const REPEATS: [u64; 3] = [1_000 * MILLI, 3_000 * MILLI, 7_000 * MILLI];

/// A client, by its index in [`USERS`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub(crate) client: &'static str,
    pub(crate) service: &'static str,
    pub(crate) is_tcp: bool,
    /// A process of the node, which uses no service, but asks a backend directly from a port that the programs may take.
    pub(crate) is_of_node: bool,
    /// As `is_of_node`, for a pod that is masqueraded with this address of the node.
    pub(crate) is_masqueraded: bool,
    /// The service has direct return, and its backends are on other machines.
    pub(crate) is_direct: bool,
    /// Another node sends the client's packets to this one, in a tunnel to the backend.
    pub(crate) is_tunnelled: bool,
    /// The backend, or one of them.
    pub(crate) backend: &'static str,
    /// The backend that replaces it when the service is changed.
    pub(crate) spare: &'static str,
    /// The number of the service, and that of the backend.
    pub(crate) numbers: (u32, u32),
}

const fn tcp(client: &'static str, service: &'static str, numbers: (u32, u32), backends: [&'static str; 2]) -> User {
    let [backend, spare] = backends;
    let (is_of_node, is_masqueraded, is_direct, is_tunnelled) = (false, false, false, false);
    let is_tcp = true;
    User { client, service, is_tcp, is_of_node, is_masqueraded, is_direct, is_tunnelled, backend, spare, numbers }
}

const fn udp(client: &'static str, service: &'static str, numbers: (u32, u32), backends: [&'static str; 2]) -> User {
    User { is_tcp: false, ..tcp(client, service, numbers, backends) }
}

const fn of_node(client: &'static str, backend: &'static str) -> User {
    User { is_of_node: true, ..udp(client, backend, (0, 0), [backend; 2]) }
}

/// A client that asks a backend without a service.
const fn unserved(client: &'static str, backend: &'static str) -> User {
    udp(client, backend, (0, 0), [backend; 2])
}

const fn masqueraded(client: &'static str, backend: &'static str) -> User {
    User { is_masqueraded: true, ..of_node(client, backend) }
}

const fn direct(user: User) -> User {
    User { is_direct: true, ..user }
}

const fn tunnelled(user: User) -> User {
    User { is_tunnelled: true, ..user }
}

const LOCAL: [&str; 2] = ["10.0.1.5:8080", "10.0.1.9:8080"];
const REMOTE: [&str; 2] = ["10.0.2.5:8080", "10.0.2.9:8080"];
const LOCAL_V6: [&str; 2] = ["[2001:db8:1001::5]:8080", "[2001:db8:1001::9]:8080"];
const REMOTE_V6: [&str; 2] = ["[2001:db8:1002::5]:8080", "[2001:db8:1002::9]:8080"];
const LOCAL_UDP: [&str; 2] = ["10.0.1.5:5353", "10.0.1.9:5353"];
const REMOTE_UDP: [&str; 2] = ["10.0.2.5:5353", "10.0.2.9:5353"];
const REMOTE_V6_UDP: [&str; 2] = ["[2001:db8:1002::5]:5353", "[2001:db8:1002::9]:5353"];
const FAR_V6: [&str; 2] = ["[2001:db8:1002::78]:8080", "[2001:db8:1002::79]:8080"];
const NEAR_V6_UDP: [&str; 2] = ["[2001:db8:1001::78]:5353", "[2001:db8:1001::79]:5353"];

/// The honest clients.
pub(crate) const USERS: [User; 29] = [
    tcp("198.51.100.7:40000", "203.0.113.1:80", (1, 11), LOCAL),
    tcp("198.51.100.7:40001", "203.0.113.2:80", (5, 15), REMOTE),
    tcp("198.51.100.8:40000", "192.0.2.1:30080", (5, 15), REMOTE),
    tcp("[2001:db8:c::7]:40000", "[2001:db8:f::1]:80", (3, 13), LOCAL_V6),
    tcp("[2001:db8:c::7]:40001", "[2001:db8:f::2]:80", (7, 17), REMOTE_V6),
    // Session affinity, with three backends.
    tcp("198.51.100.8:40001", "203.0.113.33:80", (33, 32), ["10.0.1.32:8080", "10.0.1.35:8080"]),
    // Policy Local.
    tcp("198.51.100.7:40002", "203.0.113.20:80", (20, 21), ["10.0.1.6:8080", "10.0.1.8:8080"]),
    // Source ranges.
    tcp("198.51.100.8:40002", "203.0.113.29:80", (29, 11), LOCAL),
    // No backend.
    tcp("198.51.100.8:40003", "203.0.113.27:80", (27, 0), LOCAL),
    udp("198.51.100.7:40000", "203.0.113.1:53", (2, 12), LOCAL_UDP),
    udp("198.51.100.7:40001", "203.0.113.2:53", (6, 16), REMOTE_UDP),
    udp("198.51.100.8:40000", "192.0.2.1:30053", (6, 16), REMOTE_UDP),
    udp("[2001:db8:c::7]:40001", "[2001:db8:f::2]:53", (8, 18), REMOTE_V6_UDP),
    // Two backends.
    udp("198.51.100.8:40001", "203.0.113.32:53", (34, 35), ["10.0.1.32:5353", "10.0.1.35:5353"]),
    // No backend.
    udp("198.51.100.8:40003", "203.0.113.27:53", (28, 0), LOCAL_UDP),
    // Another address of the first service, from the same port.
    tcp("198.51.100.7:40000", "203.0.113.11:80", (1, 11), LOCAL),
    of_node("198.18.0.1:10003", "10.0.2.5:5353"),
    of_node("[2001:db8:18::1]:10003", "[2001:db8:1002::5]:5353"),
    // With a NodePort.
    masqueraded("192.0.2.1:30053", "10.0.2.9:5353"),
    // Direct return, first with three backends; then two in tunnels.
    direct(tcp("198.51.100.7:40003", "203.0.113.74:80", (74, 61), ["10.0.2.74:80", "10.0.2.75:80"])),
    direct(udp("198.51.100.7:40003", "203.0.113.75:53", (75, 62), ["10.0.2.76:53", "10.0.2.77:53"])),
    direct(tcp("[2001:db8:c::7]:40003", "[2001:db8:f::76]:80", (76, 63), FAR_V6)),
    direct(udp("198.51.100.8:40004", "203.0.113.77:53", (77, 64), ["10.0.2.80:5353", "10.0.2.81:5353"])),
    // Backends here, with packets in tunnels.
    tunnelled(tcp("198.51.100.8:40005", "203.0.113.78:80", (78, 65), ["10.0.1.78:8080", "10.0.1.79:8080"])),
    tunnelled(udp("[2001:db8:c::8]:40005", "[2001:db8:f::79]:53", (79, 66), NEAR_V6_UDP)),
    // Direct return in tunnels, with another backend here.
    direct(tcp("198.51.100.8:40007", "203.0.113.82:80", (82, 69), ["10.0.2.84:8080", "10.0.2.85:8080"])),
    // With and without the service, from the same port: another node sends both.
    udp("198.51.100.9:40009", "203.0.113.83:53", (83, 70), ["10.0.1.85:5353", "10.0.1.86:5353"]),
    unserved("198.51.100.9:40009", "10.0.1.85:5353"),
    // A process whose port is a NodePort.
    of_node("198.18.0.1:30053", "10.0.2.94:5353"),
];

/// Other backends of a user with direct return.
pub(crate) const MORE_BACKENDS: [(&str, u8); 2] = [("10.0.2.82", 19), ("10.0.2.83", 19)];

/// The number of users.
pub(crate) const COUNT: u8 = 29;

/// The user with direct return and a service that also has a backend here.
pub(crate) const WITH_BACKEND_HERE: u8 = 25;

/// The user of a service from whose port another one asks the backend itself, and that one.
pub(crate) const WITH_ONE_PORT: [u8; 2] = [26, 27];

/// The user of the service with session affinity.
pub(crate) const WITH_AFFINITY: u8 = 5;

impl User {
    /// Whether the client asks the backend itself.
    pub(crate) fn is_unserved(&self) -> bool {
        self.service == self.backend
    }

    pub(crate) fn of(number: u8) -> Self {
        USERS[usize::from(number % COUNT)]
    }
}

pub(crate) fn endpoint(text: &str) -> Endpoint {
    let socket: std::net::SocketAddr = text.parse().expect("an address and a port");
    Endpoint::new(socket.ip().into(), socket.port())
}

/// What a client is to do. If it has no connection, it connects first; over UDP, it sends its query in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Connect,
    /// Sends a question, and waits for the answer.
    Ask,
    /// As `Ask`, with more bytes: over UDP in fragments, over TCP larger than the MTU to a remote backend.
    AskMuch,
    /// The backend sends something on its own.
    Push,
    Close,
    /// The client closes its end, and still receives.
    Finish,
    CloseByBackend,
    Abort,
    AbortByBackend,
}

impl Act {
    /// Whether the backend acts.
    const fn is_backends(self) -> bool {
        matches!(self, Self::Push | Self::CloseByBackend | Self::AbortByBackend)
    }
}

/// What a client waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wait {
    Nothing,
    /// That its handshake is answered, or its question; when it began and how often it was repeated.
    Repeated {
        since: u64,
        count: usize,
    },
    Answer(u8),
    Note(u8),
    Quiet,
    End,
}

/// A client at work.
#[derive(Debug)]
pub(crate) struct Client {
    ends: (Endpoint, Endpoint),
    is_tcp: bool,
    label: Label,
    acts: VecDeque<Act>,
    wait: Wait,
    is_connected: bool,
    /// Whether it has closed its end.
    has_finished: bool,
    messages: u8,
    question: Vec<Vec<u8>>,
}

impl Client {
    /// The number of the user.
    pub(crate) fn number(&self) -> u8 {
        self.label.user
    }

    pub(crate) fn is_of_node(&self) -> bool {
        User::of(self.label.user).is_of_node
    }

    /// Whether the packet alone does not show who has sent it: from the port of a service.
    pub(crate) fn is_known_by_sender(&self) -> bool {
        let user = User::of(self.label.user);
        user.is_masqueraded || (user.is_of_node && endpoint(user.client).port == 30_053)
    }

    pub(crate) fn new(number: u8) -> Self {
        let user = User::of(number);
        Self {
            ends: (endpoint(user.client), endpoint(user.service)),
            is_tcp: user.is_tcp,
            label: Label { user: number, connection: 0 },
            acts: VecDeque::new(),
            wait: Wait::Nothing,
            is_connected: false,
            has_finished: false,
            messages: 0,
            question: Vec::new(),
        }
    }

    pub(crate) fn order(&mut self, act: Act) {
        self.acts.push_back(act);
    }

    /// Whether it still has something to do.
    pub(crate) fn has_acts(&self) -> bool {
        !self.acts.is_empty()
    }

    pub(crate) const fn has_connection(&self) -> bool {
        self.is_connected
    }

    pub(crate) const fn has_finished(&self) -> bool {
        self.has_finished
    }

    pub(crate) const fn is_tcp(&self) -> bool {
        self.is_tcp
    }

    /// The number of its last connection or question.
    pub(crate) const fn connection(&self) -> u8 {
        self.label.connection
    }

    /// Whether it waits for the answer to its SYN or its question.
    pub(crate) fn is_in_handshake(&self) -> bool {
        matches!(self.wait, Wait::Repeated { .. })
    }

    /// When it repeats what was not answered, or gives up.
    pub(crate) fn next_time(&self) -> Option<u64> {
        match self.wait {
            Wait::Repeated { since, count } => Some(since + REPEATS[count]),
            _ => None,
        }
    }

    /// Takes what the parties have observed since the last call.
    pub(crate) fn observe(&mut self, seen: &Seen) {
        if seen.label != self.label || !seen.is_client {
            return;
        }
        match (&seen.event, &self.wait) {
            (Event::Connected, _) => {
                (self.is_connected, self.wait) = (true, Wait::Nothing);
                self.acts.pop_front_if(|act| *act == Act::Connect);
            }
            (Event::Got(number, Kind::Answer, _), Wait::Answer(wanted)) if number == wanted => {
                self.wait = Wait::Nothing;
            }
            (Event::Got(number, Kind::Note, _), Wait::Note(wanted)) if number == wanted => self.wait = Wait::Nothing,
            (Event::Got(..), Wait::Repeated { .. }) if !self.is_tcp => self.wait = Wait::Nothing,
            (Event::PeerClosed | Event::Reset | Event::Refused | Event::TimedOut, _) => {
                // What was to follow a connection that has failed is not tried.
                if self.is_tcp && !self.is_connected {
                    self.acts.pop_front();
                }
                (self.is_connected, self.wait) = (false, Wait::Nothing);
            }
            _ => {}
        }
    }

    /// What it sends now, as packets. What it gives up is added to what it has observed.
    pub(crate) fn work(&mut self, (clients, backends): (&mut Stack, &mut Stack), now: u64) -> Vec<(bool, Vec<u8>)> {
        loop {
            let acts = self.acts.len();
            let packets = self.work_once(clients, backends, now);
            if !packets.is_empty() || self.acts.len() == acts {
                return packets;
            }
        }
    }

    fn work_once(&mut self, clients: &mut Stack, backends: &mut Stack, now: u64) -> Vec<(bool, Vec<u8>)> {
        if let Wait::Repeated { since, count } = self.wait
            && now >= since + REPEATS[count]
        {
            return self.repeat(clients, (since, count));
        }
        if self.wait == Wait::Quiet && clients.sockets.get(&self.ends).is_none_or(Socket::is_quiet) {
            self.wait = Wait::Nothing;
        }
        if self.wait != Wait::Nothing {
            return Vec::new();
        }
        let Some(act) = self.acts.front().copied() else { return Vec::new() };
        if !self.is_tcp {
            self.acts.pop_front();
            return self.ask_udp(clients, act == Act::AskMuch, now);
        }
        if !self.is_connected {
            return self.connect(clients, act, now);
        }
        // The backend may not have received the acknowledgement of its SYN yet.
        let is_handshake = |socket: &Socket| socket.label == Some(self.label) && socket.state == State::SynReceived;
        if act.is_backends() && backends.sockets.values().any(is_handshake) {
            return Vec::new();
        }
        self.acts.pop_front();
        if self.has_finished && matches!(act, Act::Ask | Act::AskMuch | Act::Close | Act::Finish) {
            return Vec::new();
        }
        if act == Act::Finish {
            self.has_finished = true;
            let backend = backends.sockets.values_mut().find(|socket| socket.label == Some(self.label));
            backend.into_iter().for_each(|socket| socket.stays_open = true);
        }
        self.speak(clients, backends, act)
    }

    fn repeat(&mut self, clients: &mut Stack, (since, count): (u64, usize)) -> Vec<(bool, Vec<u8>)> {
        if count + 1 < REPEATS.len() {
            self.wait = Wait::Repeated { since, count: count + 1 };
            if !self.is_tcp {
                return self.question.iter().map(|packet| (true, packet.clone())).collect();
            }
            clients.delayed.push(self.label);
            let Some(socket) = clients.sockets.get(&self.ends) else { return Vec::new() };
            return self.segments(true, vec![socket.syn()]);
        }
        clients.sockets.remove(&self.ends);
        clients.questions.remove(&self.ends);
        clients.seen.push(Seen { label: self.label, is_client: true, event: Event::TimedOut });
        Vec::new()
    }

    fn ask_udp(&mut self, clients: &mut Stack, is_split: bool, now: u64) -> Vec<(bool, Vec<u8>)> {
        self.label.connection += 1;
        let message = Message { label: self.label, number: self.label.connection, kind: Kind::Question };
        self.question = if is_split {
            let id = 1 + u32::from(self.label.connection) % IDS;
            Parcel::udp(self.ends.0, self.ends.1, message.bytes(SPLIT)).halves(id, FIRST).to_vec()
        } else {
            vec![Parcel::udp(self.ends.0, self.ends.1, message.bytes(SHORT)).packet()]
        };
        clients.questions.insert(self.ends, self.label);
        self.wait = Wait::Repeated { since: now, count: 0 };
        self.question.iter().map(|packet| (true, packet.clone())).collect()
    }

    fn connect(&mut self, clients: &mut Stack, act: Act, now: u64) -> Vec<(bool, Vec<u8>)> {
        if !matches!(act, Act::Connect | Act::Ask | Act::AskMuch | Act::Push) {
            self.acts.pop_front();
            return Vec::new();
        }
        self.label.connection += 1;
        (self.messages, self.has_finished) = (0, false);
        let (socket, syn) = Socket::connect(Some(self.label), self.label.first_number(), now);
        clients.sockets.insert(self.ends, socket);
        self.wait = Wait::Repeated { since: now, count: 0 };
        self.segments(true, vec![syn])
    }

    /// Acts on an open connection.
    fn speak(&mut self, clients: &mut Stack, backends: &mut Stack, act: Act) -> Vec<(bool, Vec<u8>)> {
        let is_client = !act.is_backends();
        let label = self.label;
        let (ends, socket) = if is_client {
            (self.ends, clients.sockets.get_mut(&self.ends))
        } else {
            let found = backends.sockets.iter_mut().find(|(_, socket)| socket.label == Some(label));
            match found {
                Some((ends, socket)) => (*ends, Some(socket)),
                None => (self.ends, None),
            }
        };
        // The backend's end is missing if something has ended it: the client waits for it.
        let Some(socket) = socket else {
            self.wait = Wait::End;
            return Vec::new();
        };
        self.messages += 1;
        let message = |kind| Message { label, number: self.messages, kind };
        let mut wait = Wait::Nothing;
        let segments = match act {
            Act::Connect => Vec::new(),
            Act::Ask => {
                wait = Wait::Answer(self.messages);
                socket.say(&message(Kind::Question).bytes(SHORT))
            }
            Act::AskMuch => {
                wait = Wait::Quiet;
                socket.say(&message(Kind::Note).bytes(LARGE))
            }
            Act::Push => {
                wait = Wait::Note(self.messages);
                socket.say(&message(Kind::Note).bytes(SHORT))
            }
            Act::Finish => vec![socket.close()],
            Act::Close | Act::CloseByBackend => {
                wait = Wait::End;
                vec![socket.close()]
            }
            Act::Abort | Act::AbortByBackend => {
                if act == Act::AbortByBackend {
                    wait = Wait::End;
                }
                vec![socket.abort()]
            }
        };
        self.wait = wait;
        if act == Act::Abort {
            self.is_connected = false;
            clients.sockets.remove(&self.ends);
        } else if act == Act::AbortByBackend {
            backends.sockets.remove(&ends);
        }
        let packets = segments.into_iter().map(|segment| Parcel::between(ends.0, ends.1, segment).packet());
        packets.map(|packet| (is_client, packet)).collect()
    }

    fn segments(&self, is_client: bool, segments: Vec<Segment>) -> Vec<(bool, Vec<u8>)> {
        let packets = segments.into_iter().map(|segment| Parcel::between(self.ends.0, self.ends.1, segment).packet());
        packets.map(|packet| (is_client, packet)).collect()
    }
}
