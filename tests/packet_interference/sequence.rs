//! A sequence: what honest clients are to do, what strangers send meanwhile, and the time that passes. It is played
//! with the strangers and without them.

use nodelb_core::model::addr::Family;
use proptest::prelude::*;

use crate::honest::{Act, COUNT, Client, User, WITH_BACKEND_HERE, WITH_ONE_PORT, endpoint};
use crate::lab::{Lab, Programs};
use crate::observed::{Excuse, Observed};
use crate::socket::Socket;
use crate::strangers::{Forged, STRANGER_CHANGES, forged, nth, tunnelled, user};
use crate::tag::Label;
use crate::wire::{Parcel, Segment};
use crate::world::World;

/// What a flood consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flood {
    /// SYNs, or single datagrams.
    First,
    /// As `First`, and then an acknowledgement with a wrong number, or a second datagram.
    Twice,
    /// Connections of strangers with addresses of their own.
    Guests,
    /// First fragments, with all ids that honest clients use.
    Fragments,
    /// More packets to a service without a backend than are answered in a second.
    Refused,
}

/// A step of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A client is to do something.
    Do(u8, Act),
    /// The service of this client gets another backend, or the first one again.
    Replace(u8),
    /// Milliseconds pass.
    Wait(u32),
    /// A stranger sends a packet.
    Stranger(Forged),
    /// A stranger sends a packet in a tunnel to the end with this number.
    Tunnel(Forged, u8),
    /// Strangers send many to the service of this client: `Flood(kind, user, count, seed)`.
    Flood(Flood, u8, u8, u8),
    /// Another service changes: one of [`STRANGER_CHANGES`].
    Other(u8),
}

impl Step {
    pub(crate) const fn is_strangers(&self) -> bool {
        matches!(self, Self::Stranger(_) | Self::Tunnel(..) | Self::Flood(..) | Self::Other(_))
    }
}

const MILLI: u64 = 1_000_000;

/// Nanoseconds after a flood, until its flows give their ports up. What begins after a flood is newer than the flood.
const fn after(kind: Flood) -> u64 {
    if matches!(kind, Flood::Refused) { MILLI } else { 2_000 * MILLI }
}
/// TIME_WAIT_SECONDS of bpf/forward.h, less the second that begins meanwhile.
const IDLE_NS: u64 = 59_000 * MILLI;
/// The same of QUIET_SECONDS, after the client's FIN.
const FINISHED_NS: u64 = 1_000 * MILLI;
const SWEEP_NS: u64 = 10_000 * MILLI;

/// More than the answers that the programs send in a second.
const REFUSED: u32 = 1_001;

struct Player<'a> {
    lab: Lab<'a>,
    honest: Vec<Client>,
    observed: Observed,
    has_strangers: bool,
    replaced: [bool; COUNT as usize],
    /// The services that have had another backend.
    has_changed: [bool; COUNT as usize],
    /// Packets of strangers; a flood is many.
    foreign: usize,
    /// Whether one came in a tunnel.
    has_tunnelled: bool,
    /// When each client has begun to send something for the last time.
    last_sent: [u64; COUNT as usize],
    guests: u16,
    next_sweep: u64,
}

/// Plays the sequence on this node. Without the strangers, their steps take the same time.
pub(crate) fn play(
    programs: &mut dyn Programs,
    world: World,
    steps: &[Step],
    (has_strangers, trace): (bool, Option<&mut Vec<String>>),
) -> Observed {
    let next_sweep = world.now_ns + SWEEP_NS;
    let mut player = Player {
        lab: Lab::new(programs, world),
        honest: (0..COUNT).map(Client::new).collect(),
        observed: Observed::default(),
        has_strangers,
        replaced: [false; COUNT as usize],
        has_changed: [false; COUNT as usize],
        foreign: 0,
        has_tunnelled: false,
        last_sent: [0; COUNT as usize],
        guests: 0,
        next_sweep,
    };
    player.lab.trace = trace.as_ref().map(|_| Vec::new());
    for step in steps {
        if let Some(lines) = &mut player.lab.trace
            && (has_strangers || !step.is_strangers())
        {
            lines.push(format!("{step:?}"));
        }
        player.step(step);
    }
    player.end();
    if let (Some(trace), Some(lines)) = (trace, player.lab.trace.take()) {
        *trace = lines;
    }
    player.observed.leaks = std::mem::take(&mut player.lab.guests.leaks);
    player.observed.sent_back = std::mem::take(&mut player.lab.sent_back);
    player.observed.circling = std::mem::take(&mut player.lab.circling);
    player.observed.delayed.clone_from(&player.lab.clients.delayed);
    // With direct return, it is a matter of seconds when a change of the service ends what is silent.
    let is_changed = |label: &&Label| player.has_changed[usize::from(label.user)] && User::of(label.user).is_direct;
    for label in player.lab.clients.delayed.iter().filter(is_changed) {
        player.observed.excuse(label.user, label.connection);
    }
    player.observed
}

impl Player<'_> {
    fn step(&mut self, step: &Step) {
        if self.has_strangers && step.is_strangers() {
            self.foreign += 1;
            self.excuse_idle();
        }
        match step {
            Step::Do(user, act) => {
                let client = &mut self.honest[usize::from(user % COUNT)];
                if self.lab.programs.sees_tracking() || !client.is_known_by_sender() {
                    client.order(*act);
                }
            }
            Step::Replace(user) => self.replace(*user),
            Step::Wait(millis) => return self.wait(u64::from(*millis) * MILLI),
            Step::Stranger(forged) => {
                if self.has_strangers
                    && let Some(packet) = forged.packet()
                {
                    self.excuse_answers(forged);
                    self.lab.arrive(forged.by.name(), &packet);
                }
            }
            Step::Tunnel(forged, end) => {
                if self.has_strangers
                    && let Some(packet) = forged.packet()
                {
                    self.has_tunnelled = true;
                    self.excuse_evicted();
                    self.excuse_answers(forged);
                    self.lab.arrive(forged.by.name(), &tunnelled(&packet, *end));
                }
            }
            Step::Flood(kind, user, count, seed) => return self.flood(*kind, (*user, *count, *seed)),
            Step::Other(change) => {
                if self.has_strangers {
                    let lines = STRANGER_CHANGES[usize::from(*change) % STRANGER_CHANGES.len()];
                    lines.iter().for_each(|line| self.lab.world.apply(line));
                    self.lab.programs.change(&self.lab.world);
                }
            }
        }
        self.round();
        self.wait(MILLI);
    }

    /// One trip of the packets, and what the honest clients do then.
    fn round(&mut self) {
        self.work();
        self.lab.round();
        self.work();
    }

    fn work(&mut self) {
        let lab = &mut self.lab;
        loop {
            let seen: Vec<_> = lab.clients.seen.drain(..).chain(lab.backends.seen.drain(..)).collect();
            for seen in seen {
                let user = usize::from(seen.label.user % COUNT);
                self.honest[user].observe(&seen);
                let logs = if seen.is_client { &mut self.observed.clients } else { &mut self.observed.backends };
                let entry = (seen.label.connection, seen.event);
                // A backend may get a question twice.
                let is_again = !User::of(seen.label.user).is_tcp && logs[user].contains(&entry);
                if !is_again {
                    logs[user].push(entry);
                }
            }
            for client in &mut self.honest {
                let packets = client.work((&mut lab.clients, &mut lab.backends), lab.world.now_ns);
                if !packets.is_empty() {
                    self.last_sent[usize::from(client.number())] = lab.world.now_ns;
                }
                for (is_client, packet) in packets {
                    match (is_client, client.is_of_node()) {
                        (true, true) => lab.send_from_node(&packet),
                        (true, false) => lab.send_from_client(&packet),
                        (false, _) => lab.send_from_backend(&packet),
                    }
                }
            }
            if lab.clients.seen.is_empty() {
                return;
            }
        }
    }

    /// Lets the packets arrive that are on their way, and time pass.
    fn wait(&mut self, nanos: u64) {
        let end = self.lab.world.now_ns + nanos;
        loop {
            if nanos > MILLI {
                self.settle();
            }
            let times = self.honest.iter().filter_map(Client::next_time).chain([self.next_sweep]);
            let next = times.min().unwrap_or(end).min(end).max(self.lab.world.now_ns);
            let passed = (next - self.lab.world.now_ns) / MILLI;
            self.lab.world.now_ns = next;
            self.lab.programs.pass(passed);
            if next >= self.next_sweep {
                self.lab.programs.sweep(&self.lab.world);
                self.next_sweep = next + SWEEP_NS;
                self.excuse_finished();
            } else if next >= end {
                return;
            }
            self.work();
        }
    }

    /// Lets all packets arrive, and the clients do all that they can do at once.
    fn settle(&mut self) {
        loop {
            self.work();
            if self.lab.is_quiet() {
                return;
            }
            self.lab.settle();
        }
    }

    /// The service of the user gets another backend.
    fn replace(&mut self, user: u8) {
        let User { backend, spare, numbers: (service, number), is_tcp, .. } = User::of(user);
        if number == 0 {
            return;
        }
        let same = (0..COUNT).filter(|other| User::of(*other).numbers.0 == service);
        let is_replaced = !self.replaced[usize::from(user % COUNT)];
        same.for_each(|other| self.replaced[usize::from(other)] = is_replaced);
        let protocol = if is_tcp { "TCP" } else { "UDP" };
        let local = if backend.contains("10.0.1.") || backend.contains("1001") { " local" } else { "" };
        let (old, new, addr) =
            if is_replaced { (number, number + 100, spare) } else { (number + 100, number, backend) };
        self.lab.world.apply(&format!("remove backend {old} {service}"));
        self.lab.world.apply(&format!("backend {new} {addr}/{protocol} {service}{local}"));
        self.lab.programs.change(&self.lab.world);
        (0..COUNT).filter(|other| User::of(*other).numbers.0 == service).for_each(|other| {
            self.has_changed[usize::from(other)] = true;
        });
        self.excuse_evicted();
    }

    fn flood(&mut self, kind: Flood, (user, count, seed): (u8, u8, u8)) {
        if !self.has_strangers {
            self.settle();
            return self.wait(after(kind));
        }
        let user = if kind == Flood::Refused { 8 } else { user };
        let User { service, is_tcp, .. } = User::of(user);
        let service = endpoint(service);
        let first = |number: u32| nth(256 + 1_024 * u32::from(seed % 4) + number, service.addr.family());
        let packet = |number: u32, is_second: bool| {
            let segment = if is_second {
                Segment { flags: 16, seq: 1, ack: 12_345, ..Segment::default() }
            } else {
                Segment { flags: 2, ..Segment::default() }
            };
            if is_tcp {
                Parcel::between(first(number), service, segment).packet()
            } else {
                Parcel::udp(first(number), service, b"question".to_vec()).packet()
            }
        };
        let count = if kind == Flood::Refused { REFUSED } else { u32::from(count) };
        self.excuse(kind, user, count as usize);
        self.foreign += count as usize;
        self.excuse_evicted();
        match kind {
            Flood::Guests => (0..count).for_each(|_| self.guest(user)),
            Flood::Fragments => {
                for number in 0..count {
                    let parcel = Parcel::udp(first(number / 4), service, vec![b'!'; 1_592]);
                    let [part, _] = parcel.halves(1 + number % 4, 1_200);
                    self.lab.arrive("eth0", &part);
                }
            }
            Flood::First | Flood::Twice | Flood::Refused => {
                (0..count).for_each(|number| self.lab.arrive("eth0", &packet(number, false)));
            }
        }
        self.settle();
        if kind == Flood::Twice {
            (0..count).for_each(|number| self.lab.arrive("eth0", &packet(number, true)));
            self.settle();
        }
        self.wait(after(kind));
    }

    /// With direct return, the only entry of a connection is among the handshakes: strangers that have displaced it there may have
    /// ended the connection, if its service has lost the backend, or if a tunnel of a stranger leads to another backend here.
    fn excuse_evicted(&mut self) {
        let is_evicted = self.foreign >= Excuse::Evicted.least();
        for client in &self.honest {
            let number = client.number();
            let is_moved = self.has_changed[usize::from(number)] || (self.has_tunnelled && number == WITH_BACKEND_HERE);
            let is_ended = User::of(number).is_direct && is_moved;
            if is_evicted && (is_ended || WITH_ONE_PORT.contains(&number)) {
                self.observed.excuse(client.number(), client.connection());
            }
        }
    }

    /// The answers of a backend on this node to a client's port are those of the service, or of what is sent to the backend
    /// itself. A datagram with the address of the client, of the other kind, turns those that are on their way.
    fn excuse_answers(&mut self, forged: &Forged) {
        for client in self.honest.iter().filter(|client| !client.is_tcp()) {
            let user = User::of(client.number());
            let family = endpoint(user.client).addr.family();
            let (source, target) = (forged.from.end(family), forged.to.end(family));
            let is_to_backend = [user.backend, user.spare].iter().any(|own| endpoint(own) == target);
            if endpoint(user.client).addr == source.addr && is_to_backend != user.is_unserved() {
                self.observed.excuse(client.number(), client.connection());
            }
        }
    }

    /// With direct return, anyone can begin another connection in the place of one that is idle, if its service has lost the
    /// backend.
    fn excuse_idle(&mut self) {
        let now = self.lab.world.now_ns;
        for client in &self.honest {
            let number = usize::from(client.number());
            let idle = now - self.last_sent[number];
            let least = if client.has_finished() { FINISHED_NS } else { IDLE_NS };
            if User::of(client.number()).is_direct && self.has_changed[number] && idle >= least {
                self.observed.excuse(client.number(), client.connection());
            }
        }
    }

    /// With direct return, a connection that its client has closed loses its entry when it is silent. With strangers it may
    /// keep it, and outlive a change of the service.
    fn excuse_finished(&mut self) {
        let now = self.lab.world.now_ns;
        for client in &self.honest {
            let is_silent = client.has_finished() && now - self.last_sent[usize::from(client.number())] >= IDLE_NS;
            if User::of(client.number()).is_direct && is_silent {
                self.observed.excuse(client.number(), client.connection());
            }
        }
    }

    /// Records which connections the flood may end. One that begins after the flood of its own service may get the port of
    /// a handshake that the backend remembers, and takes a second longer.
    fn excuse(&mut self, kind: Flood, user: u8, count: usize) {
        let service = User::of(user).numbers.0;
        let is_crowd = kind == Flood::Guests && usize::from(self.guests) + count >= Excuse::Crowd.least();
        // Connections that are open have a source port, too.
        let open = self.honest.iter().filter(|client| client.is_tcp() && client.has_connection()).count();
        let is_flood =
            matches!(kind, Flood::First | Flood::Twice | Flood::Guests) && count + open >= Excuse::Flood.least();
        for client in &self.honest {
            let first = match (client.is_in_handshake(), is_crowd) {
                _ if !client.is_tcp() => continue,
                (true, _) if is_crowd || is_flood => client.connection(),
                (false, true) => client.connection() + 1,
                // Its next connection may begin during the flood.
                (false, _) if is_flood && client.has_acts() => client.connection() + 1,
                (false, _) if is_flood && User::of(client.number()).numbers.0 == service => client.connection() + 1,
                _ => continue,
            };
            self.observed.excuse(client.number(), first);
        }
    }

    /// A stranger with an address of its own connects, or sends two queries.
    fn guest(&mut self, user: u8) {
        let User { service, is_tcp, .. } = User::of(user);
        let service = endpoint(service);
        if service.addr.family() == Family::Ipv6 {
            return;
        }
        self.guests += 1;
        let [high, low] = self.guests.to_be_bytes();
        let addr = std::net::IpAddr::from([12, 0, high, low]).into();
        let client = nodelb_programs::key::Endpoint::new(addr, 50_000);
        if !is_tcp {
            let datagram = Parcel::udp(client, service, b"guest".to_vec()).packet();
            self.lab.arrive("eth0", &datagram);
            return self.lab.arrive("eth0", &datagram);
        }
        let number = 1_000 * u32::from(self.guests);
        let (socket, syn) = Socket::connect(None::<Label>, number, self.lab.world.now_ns);
        self.lab.guests.sockets.insert((client, service), socket);
        self.lab.arrive("eth0", &Parcel::between(client, service, syn).packet());
    }

    /// What was begun ends, and every connection that is still open is used in both directions.
    fn end(&mut self) {
        self.wait(10_000 * MILLI);
        for client in self.honest.iter_mut().filter(|client| client.has_connection()) {
            client.order(Act::Ask);
            client.order(Act::Push);
        }
        self.wait(10_000 * MILLI);
    }
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => Just(Act::Connect),
        4 => Just(Act::Ask),
        2 => Just(Act::AskMuch),
        2 => Just(Act::Push),
        1 => Just(Act::Close),
        1 => Just(Act::Finish),
        1 => Just(Act::CloseByBackend),
        1 => Just(Act::Abort),
        1 => Just(Act::AbortByBackend),
    ]
}

/// A step, which is often about this user.
fn step(about: u8) -> impl Strategy<Value = Step> {
    let flood = prop_oneof![
        6 => Just(Flood::First),
        6 => Just(Flood::Twice),
        3 => Just(Flood::Guests),
        3 => Just(Flood::Fragments),
        1 => Just(Flood::Refused),
    ];
    prop_oneof![
        12 => (user(about), act()).prop_map(|(user, act)| Step::Do(user, act)),
        2 => user(about).prop_map(Step::Replace),
        3 => prop_oneof![0_u32..1_000, 1_000_u32..12_000, 12_000_u32..130_000].prop_map(Step::Wait),
        14 => forged(about).prop_map(Step::Stranger),
        3 => (forged(about), any::<u8>()).prop_map(|(forged, end)| Step::Tunnel(forged, end)),
        1 => (flood, 0..COUNT, 0_u8..60, 0_u8..4).prop_map(|(kind, user, count, seed)| Step::Flood(kind, user, count, seed)),
        1 => (0..u8::try_from(STRANGER_CHANGES.len()).unwrap()).prop_map(Step::Other),
    ]
}

/// A sequence. It is mostly about one user, since some faults need many steps about the same connection.
pub(crate) fn sequence() -> impl Strategy<Value = Vec<Step>> {
    user(0).prop_flat_map(|about| prop::collection::vec(step(about), 1..40))
}
