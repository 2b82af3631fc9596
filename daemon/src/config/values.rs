//! The types of configuration values that other documents do not have: how each is read, printed and checked.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use nodelb_cli::DatapathChoice;
use nodelb_core::durations;
use nodelb_core::model::addr::{Addr, parse_net};
use nodelb_core::model::node::NodePortAddress;
use nodelb_core::model::service::ServiceName;
use nodelb_kube::apiserver::credentials::credstore;
use nodelb_sources::dns::DnsServer;
use serde::{Deserialize, Deserializer};

/// The sockets that are closed when their backend is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Disconnect {
    None,
    Udp,
    /// UDP and TCP sockets.
    All,
}

/// Reads a range of ports, written `30000-32767`. The first port is not above the last, and neither is 0.
pub(super) fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let parsed: Option<RangeInclusive<u16>> =
        text.split_once('-').and_then(|(first, last)| Some(first.trim().parse().ok()?..=last.trim().parse().ok()?));
    parsed
        .filter(|range| 0 < *range.start() && range.start() <= range.end())
        .ok_or_else(|| format!("`{text}` is not a port range (expected FIRST-LAST, such as 30000-32767)"))
}

/// A range of ports as [`port_range`] reads it.
pub(super) fn dashed(range: &RangeInclusive<u16>) -> String {
    format!("{}-{}", range.start(), range.end())
}

fn dns_server(text: &str) -> Result<DnsServer, String> {
    DnsServer::parse(text).ok_or_else(|| {
        format!(
            "`{text}` is not the address of a DNS server (expected like 192.0.2.53, 127.0.0.1:8600, [2001:db8::53]:53 or \
             fe80::1%eth0)"
        )
    })
}

/// At most this many DNS servers: with more, a question to servers that do not respond would take minutes.
const MAX_DNS_SERVERS: usize = 8;

pub(super) fn dns_servers(servers: &[DnsServer]) -> Check {
    once(servers)?;
    match servers.len() {
        0..=MAX_DNS_SERVERS => Ok(()),
        _ => Err(format!("more than {MAX_DNS_SERVERS} servers; remove some")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(pub u32);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&durations::exact(Duration::from_secs(self.0.into())))
    }
}

fn seconds(text: &str) -> Result<Seconds, String> {
    let whole = durations::parse(text).filter(|it| it.subsec_nanos() == 0);
    let seconds = whole.and_then(|it| u32::try_from(it.as_secs()).ok());
    seconds.map(Seconds).ok_or_else(|| format!("`{text}` is not a duration of whole seconds, such as \"90s\""))
}

pub(super) fn lasts<const MIN: u32, const MAX: u32>(value: &Seconds) -> Check {
    let (min, max) = (Seconds(MIN), Seconds(MAX));
    if (min..=max).contains(value) { Ok(()) } else { Err(format!("{value} is not from {min} to {max}")) }
}

/// How long something stays as it is; `None`: forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold(pub Option<Duration>);

fn hold(text: &str) -> Result<Hold, String> {
    if text == "forever" {
        return Ok(Hold(None));
    }
    let refused = || format!("`{text}` is neither a duration such as \"5m\" nor \"forever\"");
    durations::parse(text).map(|it| Hold(Some(it))).ok_or_else(refused)
}

/// The type of a configuration value.
pub(super) trait Setting: Sized {
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error>;

    /// The value in TOML: [`read`](Self::read) accepts it.
    fn to_toml(&self) -> toml::Value;
}

/// Types that serde and `toml` know.
macro_rules! native {
    ($($type:ty, $this:ident => $value:expr;)+) => {
        $( impl Setting for $type {
            fn read<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                Self::deserialize(from)
            }

            fn to_toml(&self) -> toml::Value {
                let $this = self;
                $value
            }
        } )+
    };
}

pub(super) use native;

native! {
    String, text => text.as_str().into();
    PathBuf, path => path.display().to_string().into();
    bool, is_on => (*is_on).into();
    u32, number => (*number).into();
    DatapathChoice, mode => lower_case(mode);
    Disconnect, disconnect => lower_case(disconnect);
}

/// Types that are written as strings: what describes such a string, how it is parsed, and how the value is printed.
macro_rules! texts {
    ($($type:ty, $expected:literal, $parse:expr, $this:ident => $text:expr;)+) => {
        $( impl Setting for $type {
            fn read<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                nodelb_sources::document::text(from, $expected, $parse)
            }

            fn to_toml(&self) -> toml::Value {
                let $this = self;
                $text.into()
            }
        } )+
    };
}

pub(super) use texts;

texts! {
    RangeInclusive<u16>, "a string such as \"30000-32767\"", port_range, range => dashed(range);
    NodePortAddress, "a string", nodeport_address, address => address.to_string();
    ServiceName, "a string such as \"default/kubernetes\"", service_name, name => name.to_string();
    DnsServer, "a string such as \"127.0.0.1:8600\"", dns_server, server => server.to_string();
    Seconds, "a string such as \"10s\"", seconds, seconds => seconds.to_string();
    Hold, "a string such as \"5m\"", hold, hold => hold.0.map_or_else(|| "forever".into(), durations::exact);
    SocketAddr, "a string", socket_address, address => address.to_string();
    IpNet, "a string", parse_net, net => net.to_string();
    tracing::Level, "a string", level, level => level.as_str().to_ascii_lowercase();
}

fn service_name(text: &str) -> Result<ServiceName, String> {
    let text = text.escape_debug().to_string();
    text.parse()
        .map_err(|_not_a_name| format!("`{text}` is not a Service; correct it (expected like default/kubernetes)"))
}

pub(super) fn lower_case(choice: &impl fmt::Debug) -> toml::Value {
    format!("{choice:?}").to_ascii_lowercase().into()
}

fn nodeport_address(text: &str) -> Result<NodePortAddress, String> {
    text.parse().map_err(|error| format!("{error}, or \"primary\", or \"loopback\""))
}

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let refused = || format!("`{text}` is not an address with a port (expected like 127.0.0.1:9890 or [::1]:9890)");
    text.parse().map_err(|_not_a_socket_address| refused())
}

fn level(text: &str) -> Result<tracing::Level, String> {
    use tracing::Level;
    let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
    let level = levels.into_iter().find(|level| level.as_str().to_ascii_lowercase() == text);
    let expected = "\"error\", \"warn\", \"info\", \"debug\" or \"trace\"";
    level.ok_or_else(|| format!("`{text}` is not a log level (expected {expected})"))
}

impl<T: Setting> Setting for Vec<T> {
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Item<T>(T);

        impl<'de, T: Setting> Deserialize<'de> for Item<T> {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                T::read(from).map(Self)
            }
        }

        Ok(Vec::deserialize(from)?.into_iter().map(|Item(item)| item).collect())
    }

    fn to_toml(&self) -> toml::Value {
        self.iter().map(Setting::to_toml).collect::<Vec<_>>().into()
    }
}

/// The problem of a value that has the right type. Each message says what to do.
pub(super) type Check = Result<(), String>;

pub(super) fn absolute(path: &Path) -> Check {
    if path.is_absolute() { Ok(()) } else { Err(format!("`{}` must be an absolute path", path.display())) }
}

/// The mount point of the whole BPF file system on every host.
const BPFFS: &str = "/sys/fs/bpf";

/// A directory that only nodelb writes to. The start refuses other mount points of a BPF file system.
pub(super) fn own_directory(path: &Path) -> Check {
    absolute(path)?;
    match path == Path::new(BPFFS) {
        true => {
            Err(format!("`{BPFFS}` is shared with other programs; name a directory in it, such as `{BPFFS}/nodelb`"))
        }
        false => Ok(()),
    }
}

pub(super) fn absolute_or_empty(path: &Path) -> Check {
    if path.as_os_str().is_empty() { Ok(()) } else { absolute(path) }
}

/// A file with credentials, or the name of a systemd credential.
pub(super) fn file_or_credential(path: &Path) -> Check {
    match credstore::name_of(path)? {
        Some(_) => Ok(()),
        None => absolute_or_empty(path).map_err(|problem| format!("{problem}, or credential:NAME")),
    }
}

/// The longest path in a `sockaddr_un`, in bytes, without the terminating zero (unix(7)).
const MAX_SOCKET_PATH: usize = 107;

pub(super) fn socket_path(path: &Path) -> Check {
    absolute_or_empty(path)?;
    match path.as_os_str().len() {
        0..=MAX_SOCKET_PATH => Ok(()),
        len => Err(format!(
            "`{}` has {len} bytes, but the path of a socket has at most {MAX_SOCKET_PATH}; shorten it",
            path.display()
        )),
    }
}

pub(super) fn between<const MIN: u32, const MAX: u32>(value: &u32) -> Check {
    if (MIN..=MAX).contains(value) { Ok(()) } else { Err(format!("{value} is not in {MIN}..={MAX}")) }
}

pub(super) fn name_or_empty(name: &str) -> Check {
    let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if name.len() <= 253 && name.bytes().all(is_name) {
        Ok(())
    } else {
        Err(format!("`{name}` may have only letters, digits, `-`, `_` and `.`, at most 253 of them"))
    }
}

/// White space around the name and its case are ignored, see [`nodelb_core::model::node::node_name`].
pub(super) fn node_name_or_empty(name: &str) -> Check {
    name_or_empty(name.trim())
}

pub(super) fn loopback(listen: &[SocketAddr]) -> Check {
    for addr in listen {
        if !Addr::from(addr.ip()).is_loopback() {
            return Err(format!(
                "{addr} is not a loopback address; the admin API is for this host only: use 127.0.0.1"
            ));
        }
        if addr.port() == 0 {
            return Err(format!("{addr} has port 0; choose a port, so that the command line can find it"));
        }
    }
    once(listen)
}

/// No value may occur twice.
pub(super) fn once<T: Copy + Ord + fmt::Display>(values: impl IntoIterator<Item = T>) -> Check {
    let mut seen = BTreeSet::new();
    match values.into_iter().find(|value| !seen.insert(*value)) {
        Some(twice) => Err(format!("{twice} is listed twice; remove one")),
        None => Ok(()),
    }
}

pub(super) fn reachable(listen: &[SocketAddr]) -> Check {
    for addr in listen {
        if addr.ip().is_multicast() {
            return Err(format!(
                "{addr} is a multicast address, at which no program can listen; use [::] or an address of the node"
            ));
        }
        if addr.port() == 0 {
            return Err(format!("{addr} has port 0; choose one, so that load balancers can find it"));
        }
    }
    once(listen)
}
