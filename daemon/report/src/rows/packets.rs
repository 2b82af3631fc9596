//! Rows about the packet path: network devices, and connections of clients outside the node.

use nodelb_core::text::counted;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::answer::{Answer, Part, answers};
use super::row::rows;
use crate::durations::human;
use crate::output::table::Style;
use crate::time::Time;

pub const ROLES: [&str; 3] = ["uplink", "pod", "none"];
const PROGRAMS: [&str; 3] = ["attached", "unused", "failed"];
const ACTIVITIES: [&str; 4] = ["on", "files", "draining", "off"];
pub const DIRECTIONS: [&str; 2] = ["in", "out"];
pub const LINKS: [&str; 2] = ["ethernet", "ip"];
/// Through the network stack of the node, or past it to another node.
pub const PATHS: [&str; 4] = ["stack", "redirect", "direct", "tunnel"];

rows! {
    /// A network device.
    DeviceRow in "devices" {
        /// The name.
        device: String = name("Device"),
        /// The index.
        index: u64 = number("Index"),
        /// The kind, such as `veth`.
        kind: String = text("Kind"),
        /// What the device is used for.
        role: String = one_of("Role", &ROLES),
        /// The state of nodelb's programs there.
        programs: String = one_of("Programs", &PROGRAMS),
        /// Where packets are translated by XDP, or why not; absent if XDP is off.
        xdp: Option<String> = text("XDP"),
        /// The addresses with which the node appears at the other end.
        source_addresses: Vec<String> = list("Source-Addresses"),
        /// The maximum size of a packet, in bytes.
        mtu: u64 = number("MTU"),
        /// Why the device is not used.
        reason: Option<String> = text("Reason"),
        /// Why the programs cannot be changed, or which program of other software runs before them.
        error: Option<String> = text("Error"),
    }

    /// The packet path in general.
    PacketsRow in "packets" {
        /// Whether packets of clients outside the node are translated.
        translation: String = one_of("Translation", &ACTIVITIES),
        /// How programs are attached.
        hooks: Option<String> = text("Hooks"),
        /// The number of programs that were attached again.
        repairs: u64 = number("Repairs"),
        /// Why packets are translated or not.
        reason: String = text("Reason"),
    }

    /// A connection of a client outside the node.
    ConnectionRow in "connections" {
        /// The client.
        client: String = name("Client"),
        /// The address that it connected to.
        frontend: String = name("Frontend"),
        /// The backend.
        backend: String = name("Backend"),
        /// The address with which the node appears at the backend; absent if the backend sees the client.
        source_address: Option<String> = text("Source-Address").spare(),
        /// The path of its packets.
        path: String = one_of("Path", &PATHS).spare(),
        /// The state.
        state: String = text("State"),
        /// The time of the last packet.
        last_packet: Time = age("Idle").spare(),
        /// The time of the first packet.
        first_packet: Time = age("Age").spare(),
        /// The number of bytes.
        bytes: u64 = number("Bytes").spare(),
        /// The service port.
        service: String = text("Service"),
    }

    /// Packets that were dropped, answered or passed on without a translation.
    DropRow in "drops" {
        /// The reason.
        reason: String = text("Reason"),
        /// What was done with the packets.
        verdict: String = text("Verdict"),
        /// The service port; absent if no service was found.
        service: Option<String> = text("Service"),
        /// The number of packets.
        packets: u64 = number("Packets"),
        /// The time of the first packet.
        first: Time = age("First"),
        /// The time of the last packet.
        last: Time = age("Last"),
        /// What the reason means.
        description: Option<String> = text("Description"),
    }

    /// The sum of all such packets.
    CountedRow in "counted" {
        /// The time since which packets are counted.
        since: Time = age("Since"),
        /// The number of packets; those of the service, if one is requested.
        packets: u64 = number("Packets"),
        /// The number of packets, to any service, that no row contains.
        not_listed: u64 = number("Not-Listed"),
    }

    /// A packet of a client outside the node, and what became of it.
    PacketRow in "packets" {
        /// The time in microseconds since 1970.
        time: u64 = number("Time"),
        /// The device.
        device: String = name("Device"),
        /// Through which hook of the device the packet passed.
        direction: String = one_of("Direction", &DIRECTIONS),
        /// What was done with it.
        verdict: String = text("Verdict"),
        /// The reason; absent for a translated packet.
        reason: Option<String> = text("Reason"),
        /// The service port.
        service: Option<String> = text("Service"),
        /// What the packet begins with.
        link: String = one_of("Link", &LINKS),
        /// The length of the packet, in bytes.
        length: u64 = number("Length"),
        /// The first bytes, in hexadecimal digits.
        bytes: String = name("Bytes"),
        /// The device by which the packet leaves.
        next_device: Option<String> = text("Next-Device"),
        /// What the packet begins with then.
        next_link: Option<String> = one_of("Next-Link", &LINKS),
        /// Its length then.
        next_length: Option<u64> = number("Next-Length"),
        /// Its first bytes then.
        next_bytes: Option<String> = name("Next-Bytes"),
        /// The number of packets before it that are not shown.
        lost: u64 = number("Lost"),
        /// Whether some of these may be packets that this client has not requested.
        #[serde(default)]
        lost_at_most: bool = flag("Lost-At-Most"),
    }

    /// Packets that are not shown, if none is shown after them.
    LostRow in "lost" {
        /// The number of packets.
        lost: u64 = number("Lost"),
        /// Whether some of these may be packets that this client has not requested.
        lost_at_most: bool = flag("Lost-At-Most"),
    }

    /// The clients that watch packets.
    WatcherRow in "watchers" {
        /// The number of clients.
        watchers: u64 = number("Watchers"),
        /// The number of packets that were not shown.
        lost: u64 = number("Lost"),
    }

    /// The extent of a list of connections.
    ListedRow in "listed" {
        /// The number of connections in the list.
        connections: u64 = number("Connections"),
        /// Whether the list contains every connection.
        complete: bool = flag("Complete"),
    }
}

answers! {
    /// The response of `/devices`.
    Devices {
        /// The packet path in general.
        packets: PacketsRow,
        /// The devices in the order of their indexes.
        devices: Vec<DeviceRow>,
    }

    /// The response of `/packets`.
    Packets {
        /// The packets; empty, because they are shown only while a client watches.
        packets: Vec<PacketRow>,
        /// The clients that watch; empty without the packet path.
        watchers: Vec<WatcherRow>,
    }
}

impl LostRow {
    /// A comment line.
    pub fn line(&self) -> String {
        let most = if self.lost_at_most { "at most " } else { "" };
        let others = if self.lost_at_most { ", of all that clients watch" } else { "" };
        format!("# {most}{} packets were not reported: too many at a time{others}\n", self.lost)
    }
}

/// The response of `/connections`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Connections {
    /// The connections.
    pub connections: Vec<ConnectionRow>,
    /// The extent of the list.
    pub listed: ListedRow,
}

impl Answer for Connections {
    fn text(&self, now: Time, style: &Style) -> String {
        let text = self.connections.table(now, style).to_text();
        let ListedRow { connections, complete } = self.listed;
        match complete {
            true => text,
            false => format!("{text}\nOnly the first {connections} are listed: see --limit.\n"),
        }
    }
}

/// The response of `/drops`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Drops {
    /// One row per service, reason and verdict, the largest number of packets first.
    pub drops: Vec<DropRow>,
    /// The sum of all packets.
    pub counted: CountedRow,
}

impl Answer for Drops {
    fn text(&self, now: Time, style: &Style) -> String {
        let text = self.drops.table(now, style).to_text();
        let CountedRow { since, packets, not_listed } = self.counted;
        let since = if style.wide { format!("since {since}") } else { format!("in {}", human(since.age(now))) };
        let more = if not_listed == 0 { String::new() } else { format!(", and {not_listed} in no row") };
        let packets = counted(usize::try_from(packets).unwrap_or(usize::MAX), "packet");
        format!("{text}\n{packets} {since}{more}.\n")
    }
}
